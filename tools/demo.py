"""A page on this machine: one prompt by the safe model, within a budget, and by the risky model."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
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
    RiskyOnly,
    SafeOnly,
    verify,
)
from anchored.decode.rules.rule import Rule
from anchored.eval.copying.metrics import copying_score
from anchored.eval.figures.curves import BudgetTrajectory, plot_budget_trajectories
from anchored.eval.report.side_by_side import SPEND_LEVELS
from anchored.tools.commands.serving import DemoConfig
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

RULES: dict[str, Callable[[float], Rule]] = {
    "Anchored: the mean log-ratio is bounded (KL)": lambda k: Anchored(k=k),
    "Anchored: the worst case is bounded (max)": lambda k: Anchored(k=k, divergence="max"),
    "NoOpt: all of p_r or none of it": lambda k: NoOpt(k=k),
    "CP-Fuse: the geometric mean of both": lambda k: CPFuse(),
}
SHADES = ("#eef4fb", "#d3e4f5", "#b0cfee", "#84b3e2", "#5694d4", "#2f74bf")
COLORS = {f"{nats:g} nats": shade for nats, shade in zip(SPEND_LEVELS, SHADES, strict=True)}
"""A token's color, by the nats from which on it has it."""
NUM_EXAMPLES = 5
"""Works of the quickstart that the page offers as prompts, each with the text that follows."""
Shown = list[tuple[str, str | None]]


def run(config: DemoConfig) -> int:
    """Serve the page until an interrupt ends it; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        page(config.load(), Path(folder)).launch(
            server_name="127.0.0.1",
            server_port=config.port,
            inbrowser=config.browser,
            allowed_paths=[folder],
            footer_links=[],
        )
    return 0


def page(pair: ModelPair, folder: Path) -> gr.Blocks:
    """The page of a pair. folder: for the ledgers and pictures that a browser asks for."""
    examples = [[cut.prompt, cut.reference] for cut in cut_prompts(read_works()[:NUM_EXAMPLES])]
    with gr.Blocks(title="Anchored Decoding", analytics_enabled=False, fill_width=True) as blocks:
        gr.Markdown(
            "# Anchored Decoding\nOne prompt, three times: by the safe model, by the risky model "
            "within a budget of nats from the safe one, and by the risky model alone. A token is "
            "darker the farther its distribution was from the safe model's: from 0.01 to 5 nats."
        )
        with gr.Row():
            with gr.Column():
                prompt = gr.Textbox(examples[0][0], label="Prompt", lines=4)
                is_chat = gr.Checkbox(label="Ask it as a question in a chat", value=False)
            reference = gr.Textbox(
                examples[0][1],
                label="Protected text",
                lines=6,
                info="What is pasted here is searched for in the three texts.",
            )
        with gr.Row():
            k = gr.Slider(0.1, 16, 1.0, step=0.1, label="k", info="nats a token")
            length = gr.Slider(8, 256, 64, step=8, label="Length", info="tokens")
            rule = gr.Dropdown(list(RULES), label="Rule of the middle column")
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
        with gr.Row():
            start, stop = gr.Button("Generate", variant="primary"), gr.Button("Stop")
        with gr.Row():
            columns = [_column(name) for name in ("p_s, safe", "p*, anchored", "p_r, risky")]
        texts, facts = zip(*columns, strict=True)
        with gr.Row():
            curve = gr.Image(label="Budget of the middle column", show_label=False, height=420)
            with gr.Column():
                download = gr.DownloadButton("Download its ledger", interactive=False)
                check = gr.Button("Verify its ledger")
                verdict = gr.Markdown()
        gr.Examples(examples, [prompt, reference])
        ledger = gr.State(None)
        # One pair runs one thing at a time; other windows wait in the queue.
        running = start.click(
            partial(decode, pair, folder),
            [prompt, is_chat, reference, k, length, rule, seed],
            [*texts, *facts, curve, download, ledger, verdict],
            concurrency_id="pair",
            concurrency_limit=1,
        )
        stop.click(None, cancels=[running])
        check.click(partial(verdict_of, pair), ledger, verdict, concurrency_id="pair")
    return blocks


def _column(name: str) -> tuple[gr.HighlightedText, gr.Markdown]:
    with gr.Column(min_width=240):
        text = gr.HighlightedText(label=name, color_map=COLORS, show_inline_category=False)
        return text, gr.Markdown()


def decode(
    pair: ModelPair,
    folder: Path,
    prompt: str,
    is_chat: bool,
    reference: str,
    k: float,
    length: int,
    rule_name: str,
    seed: int | None,
) -> Iterator[tuple[Any, ...]]:
    """The values of every output, after each step of the three texts and once they have ended.

    Raises gr.Error, which the page shows, for a prompt that cannot be read.
    """
    rules = (SafeOnly(), RULES[rule_name](k), RiskyOnly())
    given: dict[str, Any] = {"prompt": prompt}
    if is_chat:
        given = {"messages": [{"role": "user", "content": prompt}]}
    texts: list[Shown] = [[], [], []]
    waiting = (*("",) * 3, None, gr.DownloadButton(interactive=False), None, "")
    try:
        streams = [
            Decoder(pair, rule).stream(**given, max_new_tokens=int(length), seed=int(seed or 0))
            for rule in rules
        ]
        for pieces in itertools.zip_longest(*streams):
            for text, piece in zip(texts, pieces, strict=True):
                if piece is not None and piece.text:
                    text.append((piece.text, _color(piece.spend)))
            yield (*texts, *waiting)
    except (AnchoredError, ValueError) as error:
        raise gr.Error(str(error), print_exception=False) from error
    generations = [stream.generation for stream in streams]
    ledger = generations[1].ledger
    file, picture = _written(folder, ledger)
    facts = [_facts(generation, reference) for generation in generations]
    button = gr.DownloadButton(value=file, interactive=True)
    yield (*texts, *facts, picture, button, ledger, "")


def verdict_of(pair: ModelPair, ledger: Ledger | None) -> str:
    """The verdict of `verify` on the middle column."""
    if ledger is None:
        raise gr.Error("There is no ledger yet: generate a text first.", print_exception=False)
    return f"```\n{verify(ledger, pair)}\n```"


def _color(nats: float) -> str | None:
    level = sum(nats >= least for least in SPEND_LEVELS)
    return list(COLORS)[level - 1] if level else None


def _facts(generation: Generation, reference: str) -> str:
    ledger = generation.ledger
    lines = [f"{len(generation.token_ids)} {ledger.header.level}s, {ledger.spent:.1f} nats"]
    if ledger.certified and ledger.header.bound > 0.0:
        lines[0] += f" of at most {ledger.header.bound:.1f}"
    if reference:
        score = copying_score(generation.text, reference)
        lines.append(f"**{score.word_lcs} words** in a row of the protected text")
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
