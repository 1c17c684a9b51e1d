"""Laws that stay on the device against those of the host."""

import pytest
import torch
from tiny_models import TEXT, tiny_llama, train_tokenizer
from torch.overrides import TorchFunctionMode

from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.device_stream import DeviceByteStream
from anchored.decode.byte.settings import ByteEvaluation
from anchored.decode.models.attention import row_attention
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from anchored.decode.warpers import Warpers
from anchored.pretrain.tokens.bpe import pre_tokenizer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TEXTS = ["the keeper's  lamp it'", "caf\u00e9 12\n\n x"]
WARPERS = [None, SamplingConfig(), SamplingConfig(top_k=3), SamplingConfig(top_p=0.5)]
READS = {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy}
READS |= {torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.nonzero}


class FloatReads(TorchFunctionMode):
    """Counts what the host reads of floating-point tensors: on CUDA it would wait each time."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in READS and args[0].is_floating_point():
            self.number += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def model():
    return tiny_llama(2, vocab_size=300, max_position_embeddings=256).to(DEVICE).eval()


@pytest.fixture(scope="module")
def vocabulary() -> ByteVocabulary:
    tokenizer = train_tokenizer(300, TEXT[::-1], pre_tokenizer())
    return ByteVocabulary(tokenizer.backend_tokenizer, [1], 0)


def open_stream(kind, model, vocabulary, sampling=None, **changes):
    return kind(
        model,
        row_attention(model),
        vocabulary,
        num_rows=2,
        warp=Warpers(sampling, [1]) if sampling else None,
        evaluation=ByteEvaluation(**changes),
    )


def prompts() -> list[list[int]]:
    return [list(text.encode()[:5]) for text in TEXTS]


def rest() -> list[tuple[int, int]]:
    """Columns of the bytes behind the prompts, the second text's end among them."""
    first, second = (list(text.encode()[5:]) for text in TEXTS)
    return list(zip(first, [*second, END_SYMBOL, *first], strict=False))


@pytest.mark.parametrize("mode", ["masked", "raw"])
@pytest.mark.parametrize("sampling", WARPERS, ids=str)
def test_every_law_is_that_of_the_host(model, vocabulary, sampling, mode):
    """Truncation bans given bytes too: such texts stand for their newest tokens alone."""
    streams = [
        open_stream(kind, model, vocabulary, sampling, mode=mode)
        for kind in (ByteStream, DeviceByteStream)
    ]
    host, device = (stream.read(prompts(), [0, 1]) for stream in streams)
    torch.testing.assert_close(device.logits, host.logits, rtol=1e-11, atol=1e-11)
    for column in rest():
        host, device = (s.feed_rows([0, 1], [[byte] for byte in column]) for s in streams)
        torch.testing.assert_close(device, host, rtol=1e-11, atol=1e-11)
    for row in range(2):
        host, device = (stream.counts(row).record() for stream in streams)
        assert device == pytest.approx(host, rel=1e-9, abs=1e-12)


def test_a_text_that_warping_excludes_goes_on_from_its_newest_tokens(model, vocabulary):
    """Given bytes that no allowed token has, then the likeliest ones, which begin long tokens."""
    texts = vocabulary.viability.merges.bytes_of
    short = [token for token, text in texts.items() if len(text) == 1]
    is_short = torch.zeros(vocabulary.vocab_size, dtype=torch.bool, device=DEVICE)
    is_short[short] = True
    streams = [open_stream(kind, model, vocabulary) for kind in (ByteStream, DeviceByteStream)]
    for stream in streams:
        stream.warp = lambda logits, seen: logits.masked_fill(is_short, -torch.inf)
    host, device = (stream.read(prompts(), [0, 1]).logits for stream in streams)
    num_alive = 0
    for step, given in enumerate(rest()[:12]):
        likeliest = host[:, :END_SYMBOL].argmax(-1).tolist()
        column = given if step % 4 == 0 else likeliest
        host, device = (s.feed_rows([0, 1], [[byte] for byte in column]) for s in streams)
        torch.testing.assert_close(device, host, rtol=1e-11, atol=1e-11)
        num_alive += int((host.amax(-1) > -torch.inf).sum())
    assert num_alive > 5


def test_rows_that_catch_up_by_several_bytes_agree(model, vocabulary):
    streams = [open_stream(k, model, vocabulary) for k in (ByteStream, DeviceByteStream)]
    tokens = [list(b"'s la"), list("\u00e9 1".encode()[1:])]
    for stream in streams:
        stream.read(prompts(), [0, 1])
    host, device = (stream.feed_rows([1, 0], tokens[::-1]) for stream in streams)
    torch.testing.assert_close(device, host, rtol=1e-11, atol=1e-11)


def test_a_byte_reads_nothing_back(model, vocabulary):
    """Only the draw is left to read: one transfer a byte. The host stream reads laws."""
    numbers = {}
    for kind in (ByteStream, DeviceByteStream):
        stream = open_stream(kind, model, vocabulary, prompt_scores="none")
        stream.read(prompts(), [0, 1])
        with FloatReads() as reads:
            for column in rest()[:3]:
                stream.feed_rows([0, 1], [[byte] for byte in column])
        numbers[kind] = reads.number
    assert numbers[DeviceByteStream] == 0 < numbers[ByteStream]


@pytest.mark.parametrize("changes", [{"tau": 0.1}, {"prefetch": 2}], ids=str)
def test_choices_by_mass_are_refused(model, vocabulary, changes):
    with pytest.raises(ValueError, match=r"laws cannot stay on the device: (tau|prefetch)="):
        open_stream(DeviceByteStream, model, vocabulary, **changes)
