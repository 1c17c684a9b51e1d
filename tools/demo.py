"""A page on this machine: one prompt by the safe model, within a budget, and by the risky model."""

import itertools
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from anchored import (
    Anchored,
    AnchoredError,
    CPFuse,
    Decoder,
    Generation,
    Ledger,
    ModelPair,
    NoOpt,
    Pathwise,
    RiskyOnly,
    SafeOnly,
    verify,
)
from anchored.decode.generation import likelier
from anchored.decode.rules.rule import Rule
from anchored.eval.copying.metrics import copying_score
from anchored.eval.figures.curves import BudgetTrajectory, plot_budget_trajectories
from anchored.eval.report.page import SPEND_CSS, SPEND_LEGEND, shaded
from anchored.eval.report.tables import at_most
from anchored.tools.commands.serving import DemoConfig
from anchored.tools.quickstart.look import recital_bound
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

RULES: dict[str, Callable[..., Rule]] = {
    "Pathwise": Pathwise,
    "Anchored (KL)": Anchored,
    "Anchored (max)": partial(Anchored, divergence="max"),
    "NoOpt": NoOpt,
    "CP-Fuse": lambda **_: CPFuse(),
}
"""Rules by name, made of options of a budget, as k=1.0."""
FIRST = Pathwise()
"""The rule that the page begins with."""
CSS = f"""
.gradio-container {{ --spend: 0, 114, 178; }}
.dark .gradio-container, .gradio-container.dark {{ --spend: 86, 180, 233; }}
.returned {{ --spend: 230, 159, 0; }}
.answer {{ white-space: pre-wrap; overflow-wrap: anywhere; min-height: 6rem; line-height: 1.6; }}
{SPEND_CSS}"""
LEGEND = (
    f'{SPEND_LEGEND} Those in <span class="returned"><span class="s6">this color</span></span> '
    "gave so many back."
)
NUM_EXAMPLES = 5
"""Works of the quickstart that the page offers as prompts, each with the text that follows."""
TITLES = ("p_s, safe", "p*, anchored", "p_r, risky")


def run(config: DemoConfig) -> int:
    """Serve the page until an interrupt ends it; returns the exit status.

    Raises OSError, before the pair is loaded, for a port that is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", config.port))
        except OSError as error:
            raise OSError(f"--port {config.port} cannot be used: {error.strerror}") from None
    with tempfile.TemporaryDirectory() as folder:
        blocks = page(config.load(), Path(folder))
        print(f"The page is at http://127.0.0.1:{config.port}. Ctrl-C ends it.", flush=True)
        serve(blocks, Path(folder), config.port, inbrowser=config.browser)
    return 0


def serve(blocks: gr.Blocks, folder: Path, port: int | None, **options: Any) -> str:
    """Serve a page on 127.0.0.1, on a free port for None; returns its address once it has ended, or
    at once with `prevent_thread_lock`."""
    _, address, _ = blocks.launch(
        server_name="127.0.0.1",
        server_port=port,
        allowed_paths=[str(folder)],
        footer_links=[],
        css=CSS,
        quiet=True,  # else it prints how to publish the page
        **options,
    )
    return str(address)


def page(pair: ModelPair, folder: Path) -> gr.Blocks:
    """The page of a pair. folder: for the ledgers and pictures that a browser asks for."""
    examples = [[cut.prompt, cut.reference] for cut in cut_prompts(read_works()[:NUM_EXAMPLES])]
    with gr.Blocks(title="Anchored Decoding", analytics_enabled=False, fill_width=True) as blocks:
        gr.Markdown(
            "# Anchored Decoding\nOne prompt, three times: by the safe model, by the risky model "
            "within a budget of nats from the safe one, and by the risky model alone."
        )
        with gr.Row():
            with gr.Column():
                prompt = gr.Textbox(examples[0][0], label="Prompt", lines=4)
                is_chat = gr.Checkbox(label="Ask it as a question in a chat", value=False)
            reference = gr.Textbox(
                examples[0][1],
                label="Protected text",
                lines=6,
                info="The three texts are searched for what is pasted here.",
            )
        budget = _budget_row()
        with gr.Row():
            start, stop = gr.Button("Generate", variant="primary"), gr.Button("Stop")
        gr.HTML(LEGEND, container=False)
        with gr.Row():
            texts, facts = zip(*map(_column, TITLES), strict=True)
        with gr.Row():
            curve = gr.Image(label="Budget of p*", show_label=False, height=420, visible=False)
            with gr.Column():
                download = gr.DownloadButton("Download the ledger of p*", interactive=False)
                check = gr.Button("Verify the ledger of p*")
                verdict = gr.Markdown()
        gr.Examples(examples, [prompt, reference])
        ledger = gr.State(None)
        # The page begins with its first example. One pair runs one thing at a time; other windows
        # wait in the queue.
        running = gr.on(
            [blocks.load, start.click],
            partial(decode, pair, folder),
            [prompt, is_chat, reference, *budget],
            [*texts, *facts, curve, download, ledger, verdict],
            concurrency_id="pair",
            concurrency_limit=1,
            trigger_mode="once",  # a second click while it runs starts nothing
        )
        stop.click(None, cancels=[running])
        check.click(partial(verdict_of, pair), ledger, verdict, concurrency_id="pair")
    return blocks


def _budget_row() -> list[Any]:
    """The inputs of a budget: k, bank, length, rule and seed."""
    with gr.Row():
        k = gr.Slider(0, 16, FIRST.k, step=0.1, label="k", info="nats per token")
        # Not a gr.Number, of which a browser sends 0 where it is empty.
        info = "nats of a bucket that is full at the start, empty for none"
        bank = gr.Textbox(f"{FIRST.bank:g}", label="Bank", info=info)
        length = gr.Slider(8, 256, 64, step=8, label="Length", info="tokens")
        rule = gr.Dropdown(list(RULES), label="Rule of p*", min_width=220)
        seed = gr.Number(0, label="Seed", precision=0)
    return [k, bank, length, rule, seed]


def _column(title: str) -> tuple[gr.HTML, gr.Markdown]:
    with gr.Column(min_width=240):
        gr.Markdown(f"### {title}".replace("*", r"\*"))
        text = gr.HTML(elem_classes="answer", container=True, padding=True)
        return text, gr.Markdown()


def decode(
    pair: ModelPair,
    folder: Path,
    prompt: str,
    is_chat: bool,
    reference: str,
    k: float,
    bank: str,
    length: int,
    rule_name: str,
    seed: int | None,
) -> Iterator[tuple[Any, ...]]:
    """The values of every output, after each step of the three texts and once they have ended.

    Raises gr.Error, which the page shows, for a prompt or a bank that cannot be used.
    """
    request: dict[str, Any] = {"prompt": prompt}
    if is_chat:
        request = {"messages": [{"role": "user", "content": prompt}]}
    texts, counts = ["", "", ""], [0, 0, 0]
    waiting = (gr.Image(visible=False), gr.DownloadButton(interactive=False), None, "")
    try:
        rules = (SafeOnly(), RULES[rule_name](k=k, bank=_bank(bank)), RiskyOnly())
        streams = [
            Decoder(pair, rule).stream(**request, max_new_tokens=int(length), seed=seed or 0)
            for rule in rules
        ]
        for pieces in itertools.zip_longest(*streams):
            for i, piece in enumerate(pieces):
                if piece is not None:
                    texts[i] += _colored(piece.text, piece.spend)
                    counts[i] += 1
            yield (*texts, *(f"step {count}" for count in counts), *waiting)
    except (AnchoredError, ValueError) as error:
        raise gr.Error(str(error), print_exception=False) from error
    generations = [stream.generation for stream in streams]
    ledger = generations[1].ledger
    file, picture = _written(folder, ledger)
    facts = [_facts(generation, reference) for generation in generations]
    if reference and ledger.certified and not is_chat:
        most = at_most(recital_bound(pair, prompt, reference, ledger))
        facts[1] += f"  \nproved: recites the protected text with a chance of at most {most}"
    curve = gr.Image(picture, visible=picture is not None)
    yield (*texts, *facts, curve, gr.DownloadButton(value=file, interactive=True), ledger, "")


def _colored(text: str, spend: float) -> str:
    """A token's HTML, darker the more nats it spent, or gave back."""
    html = shaded(escape(text), abs(spend))
    return f'<span class="returned">{html}</span>' if spend < 0.0 else html


def _bank(text: str) -> float | None:
    """The nats of a field that may be empty; ValueError for what is no number."""
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise ValueError(f"the bank must be a number of nats, or empty, got {text!r}") from None


def verdict_of(pair: ModelPair, ledger: Ledger | None) -> str:
    """The verdict of `verify` on the middle column."""
    if ledger is None:
        raise gr.Error("There is no ledger yet: generate a text first.", print_exception=False)
    return f"```\n{verify(ledger, pair)}\n```"


def _facts(generation: Generation, reference: str) -> str:
    """Lines on what a text spent and copied, and on why it could not spend anything."""
    header, spent = generation.ledger.header, generation.ledger.spent
    lines = [f"{len(generation.token_ids)} {header.level}s, {spent:.1f} nats"]
    if generation.ledger.certified and header.bound > 0.0:
        lines[0] += f" of at most {header.bound:.1f}"
    elif generation.ledger.certified and header.K:
        lines.append(
            f"The prompt's debt of {header.debt:.1f} nats uses up K = {header.K:g}: the safe model "
            "writes alone. A larger k or length leaves something to spend."
        )
    if generation.ledger.certified and header.charge == "drawn":
        lines.append(likelier(spent))
    if reference:
        score = copying_score(generation.text, reference)
        lines.append(f"**{score['word_lcs']} words** in a row of the protected text")
    return "  \n".join(lines)


def _written(folder: Path, ledger: Ledger) -> tuple[str, str | None]:
    """The ledger's file and, of one with a bound, the picture of its budget."""
    made = Path(tempfile.mkdtemp(dir=folder))
    ledger.save(made / "ledger.jsonl")
    if not ledger.certified:
        return str(made / "ledger.jsonl"), None
    trajectory = BudgetTrajectory.of(f"k = {ledger.header.k:g}", ledger)
    plot_budget_trajectories([trajectory], made / "budget.png", symbol=ledger.header.level)
    return str(made / "ledger.jsonl"), str(made / "budget.png")
