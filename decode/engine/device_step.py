"""One decoding step of a batch without the host: draft, verify, walk, record, advance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.accounts import copy_steps, empty_accounts
from ...kernels.walk import Divergence, Walk, WalkMemory, walk, walk_memory
from ...kernels.warping import Stops, Warping
from ..models.kv_cache import uploaded
from ..models.row_stream import RowStream
from ..settings import SamplingConfig
from .request import Drawn

# B rows, V vocabulary, N steps that are kept until the host looks, G tokens of a step at most.

NUM_KEPT = 8
"""Steps between two looks of the host. A request that has ended wastes half as many on average."""

NO_TOKEN = -1

NUM_FIELDS = len(Drawn._fields) + 2
"""Of a record: those of `Drawn`, the draft (NO_TOKEN where there was none), whether the token was
drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceState:
    """B rows, each with a request or finished; a finished row reads its last token again.

    Reading it changes nothing: the same token at the same column gives the same keys and logits.
    """

    logits: dict[str, Tensor]
    """By "safe" and "risky": (B, V), raw, after the last token at the newest step."""
    seen: Tensor
    """(B, V) bool: tokens of the prompt and the output."""
    last_tokens: Tensor
    """(B,) int64, the end of the text, which the step to come reads."""
    positions: Tensor
    """(B,) int64, its column: those before it count in both caches, those behind are stale."""
    steps_left: Tensor
    """(B,) int64, tokens that may still be drawn."""
    is_finished: Tensor
    """(B,) bool."""
    is_alone: Tensor
    """(B,) bool: the step to come drafts nothing in this row, see `DeviceStep`."""
    keys: Tensor
    """(B,) int64, of the uniforms of each row's request, see `random_key`."""
    accounts: Tensor
    """(B, 6) float64, of `kernels.accounts`."""
    penalty: Tensor
    """(B,) float32, the repetition penalty."""
    temperature: Tensor
    """(B,) float32."""
    records: Tensor
    """(N, B, G, NUM_FIELDS) float64, of the steps since `rewind`."""
    cursor: Tensor
    """(1,) int64, where the next record goes."""

    @classmethod
    def empty(cls, logits: dict[str, Tensor], seen: Tensor, *, num_drafts: int) -> "DeviceState":
        """All rows finished; `logits` and `seen` are shared with the caller.

        num_drafts: most drafts of a step.
        """
        num_rows, device = len(seen), seen.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            logits=logits,
            seen=seen,
            last_tokens=zeros(num_rows),
            positions=zeros(num_rows),
            steps_left=zeros(num_rows),
            is_finished=torch.ones(num_rows, dtype=torch.bool, device=device),
            is_alone=zeros(num_rows, dtype=torch.bool),
            keys=zeros(num_rows),
            accounts=empty_accounts(num_rows, device),
            penalty=torch.ones(num_rows, device=device),
            temperature=torch.ones(num_rows, device=device),
            records=zeros(NUM_KEPT, num_rows, num_drafts + 1, NUM_FIELDS, dtype=torch.float64),
            cursor=zeros(1),
        )

    def warp_by(self, sampling: SamplingConfig) -> None:
        """Take penalty and temperature of every row from `sampling`."""
        self.penalty.fill_(sampling.repetition_penalty)
        self.temperature.fill_(sampling.temperature)

    def join(
        self,
        rows: list[int],
        prompts: Sequence[Sequence[int]],
        keys: list[int],
        steps: list[int],
        accounts: Tensor,
    ) -> None:
        """Begin requests in rows whose prompts have just been read; `steps`: most tokens of each.

        accounts: (len(rows), 6) float64.
        """
        ends = [prompt[-1] for prompt in prompts]
        columns = [len(prompt) - 1 for prompt in prompts]
        numbers = torch.tensor([rows, ends, columns, keys, steps])
        places, *values = uploaded(numbers, self.keys.device).unbind(0)
        fields = (self.last_tokens, self.positions, self.keys, self.steps_left)
        for field, value in zip(fields, values, strict=True):
            field.index_copy_(0, places, value)
        self.accounts.index_copy_(0, places, accounts)
        for flags in (self.is_finished, self.is_alone):
            flags.index_fill_(0, places, False)

    def leave(self, row: int) -> None:
        """Finish a row and send what it reads to the first columns, where the next prompt goes."""
        self.is_finished[row] = True
        self.positions[row] = 0

    def rewind(self) -> None:
        """Forget the records of earlier steps."""
        self.cursor.zero_()


class DeviceFork:
    """Calls two functions: on two streams of a CUDA device, or one after the other.

    Inside the capture of a CUDA graph the two become branches of it that join again.
    """

    def __init__(self, device: torch.device | None) -> None:
        """device: None for one stream, which is all there is without CUDA."""
        is_forked = device is not None and device.type == "cuda"
        self._side = torch.cuda.Stream(device) if is_forked else None  # type: ignore[no-untyped-call]

    def __call__(
        self, first: Callable[[], Tensor], second: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Their results; what is launched from here on waits for both."""
        if self._side is None:
            return first(), second()
        here = torch.cuda.current_stream(self._side.device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            beside = second()
        result = first()
        here.wait_stream(self._side)
        return result, beside


# B rows, G tokens that a step may draw in a row (its drafts and one more), V vocabulary.


@dataclass(frozen=True, slots=True)
class Laws:
    """What the rows of a walk are decided by."""

    drafts: Tensor
    """(B, G - 1) int64, NO_TOKEN behind the last draft of a row."""
    safe: Tensor
    """(B, G, V), raw, after each of the tokens read."""
    risky: Tensor
    """(B, G, V), raw."""
    seen: Tensor
    """(B, G, V) bool: tokens of the text and of the drafts before."""


class DeviceStep:
    """Draws one token or more in every row that is not finished.

    The safe model reads the last token and drafts: its own draws by the request's u1. The risky
    model reads the same tokens in one forward, and one walk decides the positions in order. Then
    the last token is the last drawn, which neither model has read: moving the row's position back
    to it forgets what was drafted in vain. Without drafts this is plain decoding.
    Reads and writes tensors that never move and asks none for its values, so that a CUDA graph may
    capture a call. A row ends with a stop token, its last step, or logits that are no distribution;
    with drafts these are tried once more without, as NaN of a draft spreads to the rows before it.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding", with
    the uniforms fixed beforehand.
    """

    def __init__(
        self,
        state: DeviceState,
        streams: Mapping[str, RowStream],
        *,
        stop_token_ids: Sequence[int],
        divergence: Divergence,
        num_drafts: int = 0,
        is_forked: bool = False,
    ) -> None:
        """is_forked: on CUDA, forwards of both models that do not wait for each other overlap."""
        self.state, self.streams, self.divergence = state, dict(streams), divergence
        (num_rows, vocab_size), device = state.seen.shape, state.seen.device
        self._num_drafts, self._device = num_drafts, device
        self._memory = walk_memory(num_rows, num_drafts + 1, vocab_size, device)
        self._draft_memory = walk_memory(num_rows, 1, vocab_size, device)
        self._no_drafts = torch.empty(num_rows, 0, dtype=torch.int64, device=device)
        self._no_budget = torch.zeros_like(state.accounts)
        self._end = min(stop_token_ids, default=NO_TOKEN)
        self._stops = Stops.of(stop_token_ids, vocab_size, device)
        self._fork = DeviceFork(device if is_forked else None)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Advance every row by the tokens of one walk."""
        state, laws = self.state, self._laws()
        drawn = self._walk(
            self._memory, laws.risky, laws.safe, laws.seen, state.accounts, laws.drafts
        )
        is_told = drawn.was_reached & ~state.is_finished[:, None]
        is_drawn = is_told & (drawn.token_ids >= 0)
        is_broken = (is_told & ~is_drawn).any(1)
        state.is_alone.copy_(is_broken & (laws.drafts >= 0).any(1))
        self._record(drawn, laws.drafts, is_drawn | is_told & ~state.is_alone[:, None])
        self._advance(drawn.token_ids, is_drawn)
        state.is_finished.logical_or_(is_broken & ~state.is_alone)
        for name, logits in (("safe", laws.safe), ("risky", laws.risky)):
            state.logits[name].copy_(logits[:, 0])

    def _laws(self) -> Laws:
        """Draft as far as each row may, and read with both models."""
        state = self.state
        read, drafts, safe, seen = [state.last_tokens], [], [], [state.seen]
        if self._num_drafts > 0:
            is_drafting = ~(state.is_finished | state.is_alone)
            copy_steps(self._no_budget, state.accounts)
        for place in range(self._num_drafts):
            safe.append(self._read("safe", read, place))
            guess = self._guessed(safe[-1], seen[-1])
            is_drafting = is_drafting & self._is_followed(guess, place)
            drafts.append(guess.masked_fill(~is_drafting, NO_TOKEN))
            # Behind its drafts a row reads a token of its own, as right padding does.
            read.append(guess.where(is_drafting, state.last_tokens))
            seen.append(seen[-1].scatter(1, read[-1][:, None], True))
        risky, last = self._fork(
            lambda: self._read("risky", read, 0),
            lambda: self._read("safe", read, self._num_drafts),
        )
        safe.append(last)
        return Laws(
            torch.stack(drafts, dim=1) if drafts else self._no_drafts,
            torch.cat(safe, dim=1) if drafts else last,
            risky,
            torch.stack(seen, dim=1) if drafts else state.seen[:, None],
        )

    def _read(self, name: str, tokens: list[Tensor], first: int) -> Tensor:
        """(B, T, V) logits after the tokens from `first` on, each at its column."""
        places = torch.arange(first, len(tokens), device=self._device)
        token_ids = torch.stack(tokens[first:], dim=1)
        return self.streams[name].feed_at(token_ids, self.state.positions[:, None] + places)

    def _guessed(self, safe: Tensor, seen: Tensor) -> Tensor:
        """(B,) int64, the safe model's own draws: those of a walk that may spend nothing.

        safe: (B, 1, V), raw. seen: (B, V). NO_TOKEN where the logits are no distribution.
        """
        drawn = self._walk(
            self._draft_memory, safe, safe, seen[:, None], self._no_budget, self._no_drafts
        )
        return drawn.token_ids[:, 0].clone()

    def _is_followed(self, guess: Tensor, place: int) -> Tensor:
        """(B,) bool: the draft at this place does not end the text, should it be kept."""
        is_end = (guess == NO_TOKEN) | (guess == self._end)
        return ~is_end & (self.state.steps_left > place + 1)

    def _walk(
        self,
        memory: WalkMemory,
        risky: Tensor,
        safe: Tensor,
        seen: Tensor,
        accounts: Tensor,
        drafts: Tensor,
    ) -> Walk:
        return walk(
            risky,
            safe,
            accounts=accounts,
            uniform=self.state.keys,
            drafts=drafts,
            warping=Warping(
                temperature=self.state.temperature,
                penalty=self.state.penalty,
                seen=seen,
                stops=self._stops,
            ),
            memory=memory,
            divergence=self.divergence,
        )

    def _record(self, drawn: Walk, drafts: Tensor, is_told: Tensor) -> None:
        no_draft = torch.full_like(drawn.token_ids[:, :1], NO_TOKEN)
        found = Drawn(
            token_id=drawn.token_ids,
            accepted=drawn.accepted,
            budget=drawn.budget,
            spend=drawn.spend,
            weight=drawn.weight,
            log_prob=drawn.log_probs,
            safe_log_prob=drawn.safe_log_probs,
        )
        fields = [*found, torch.cat([drafts, no_draft], dim=1), is_told]
        record = torch.stack([field.double() for field in fields], dim=-1)
        records, cursor = self.state.records, self.state.cursor
        missing = records.shape[2] - record.shape[1]  # other steps on this state draft further
        record = torch.nn.functional.pad(record, (0, 0, 0, missing))
        records.index_copy_(0, cursor, record[None])
        cursor.add_(1).remainder_(len(records))

    def _advance(self, token_ids: Tensor, is_drawn: Tensor) -> None:
        """Let each text end with the last token drawn in it; finished rows stay as they are."""
        state, num_drawn = self.state, is_drawn.sum(1)
        last = token_ids.gather(1, (num_drawn - 1).clamp(min=0)[:, None])[:, 0]
        state.last_tokens.copy_(torch.where(num_drawn > 0, last, state.last_tokens))
        state.positions.add_(num_drawn)
        state.steps_left.sub_(num_drawn)
        state.seen.scatter_(1, token_ids.where(is_drawn, state.last_tokens[:, None]), True)
        is_last = (state.last_tokens == self._end) | (state.steps_left <= 0)
        state.is_finished.logical_or_(is_last & (num_drawn > 0))
