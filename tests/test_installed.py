"""Rules and metrics of other packages: found by entry points, used like those of the package."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from anchored import Anchored, Decoder, verify
from anchored.decode.pair_options import RuleOptions
from anchored.decode.rules.registry import (
    BUDGET_OPTIONS,
    BUDGETED,
    DEFAULT_K,
    RULES,
    make_rule,
    rule_class,
)
from anchored.eval.analysis.evaluated import evaluation_table
from anchored.eval.copying.literal import copying_results
from anchored.eval.copying.metrics import copying_score, installed_metrics
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.statistics import json_value
from anchored.installed import declared

STRANGER = Path(__file__).parent / "support/stranger"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package, by name, with these lines of entry_points.txt."""

    def install(package: str, *lines: str) -> None:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join(lines))
        declared.cache_clear()
        installed_metrics.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(STRANGER)
    yield install
    declared.cache_clear()
    installed_metrics.cache_clear()


BLEND = ("[anchored.rules]", "blend = stranger:Blend")


def test_a_package_s_rule_decodes_and_its_ledger_is_verified_by_name(install, pair):
    install("stranger", *BLEND)
    rule = make_rule("blend", {"k": 0.5, "halvings": 32})
    ledger = Decoder(pair, rule).generate("the keeper", max_new_tokens=12)[0].ledger
    assert (ledger.header.rule, ledger.header.rule_settings["halvings"]) == ("blend", 32)
    assert ledger.certified and 0.0 < ledger.spent <= ledger.header.bound
    assert verify(ledger, pair).failures == []
    other = replace(ledger.steps[0], token_id=ledger.steps[0].token_id - 1)
    forged = replace(ledger, steps=[other, *ledger.steps[1:]])
    assert not verify(forged, pair).is_ok


def test_the_command_line_takes_its_name_its_settings_and_the_options_it_has_as_fields(install):
    install("stranger", *BLEND)
    rule = RuleOptions(rule="blend", setting=("halvings=8",), k=2.0, debt="none").make()
    assert rule == rule_class("blend")(k=2.0, halvings=8, debt="none")
    assert RuleOptions(rule="blend").make().k == DEFAULT_K == 1.5
    with pytest.raises(ValueError, match=r"settings of rule blend: unknown field halving"):
        RuleOptions(rule="blend", setting=("halving=8",)).make()


def test_nothing_of_a_package_is_imported_before_its_rule_is_asked_for(install, monkeypatch):
    install("stranger", "[anchored.rules]", "blend = nowhere:Blend")
    assert RuleOptions().make() == Anchored(k=DEFAULT_K)
    with pytest.raises(ValueError, match=r"'blend' of stranger 1.0 cannot be imported: .*nowhere"):
        make_rule("blend", {})


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        ("rcad = stranger:Blend", "rcad", "'rcad' of stranger 1.0 is a name of anchored"),
        ("blend = stranger:Blend", "bland", "must be one of anchored, .*, blend, got 'bland'"),
        ("mix = stranger:Blend", "mix", "has the name 'blend': both must be the same"),
    ],
)
def test_names_that_mean_nothing_or_two_things_are_refused(install, line, name, message):
    install("stranger", "[anchored.rules]", line)
    with pytest.raises(ValueError, match=message):
        make_rule(name, {"k": 1.0})


def test_the_options_of_a_budget_are_the_fields_of_a_rule():
    for name in RULES:
        names = [field.name for field in fields(rule_class(name))]
        assert set(BUDGETED.get(name, ())) == {name for name in BUDGET_OPTIONS if name in names}


@pytest.mark.slow
def test_a_package_that_pip_installs_decodes_and_is_verified(tmp_path, pair_folders):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(STRANGER, source)  # where pip builds
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
    cli, models = ("-m", "anchored"), ("--safe", pair_folders[0], "--risky", pair_folders[1])
    ledger = ("--ledger", tmp_path / "ledger.jsonl")

    def python(*words: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.check_output([sys.executable, *words], env=environment, text=True)

    python(*pip, "--target", target, source)
    rule = ("--rule", "blend", "--setting", "halvings=20", "--k", "2")
    options = ("--prompt", "the keeper", "--max-new-tokens", "6")
    python(*cli, "generate", *models, *rule, *options, *ledger)
    assert python(*cli, "verify", *models, *ledger).startswith("OK: 6 tokens")


TEXTS = [
    RecordedText(setting=setting, id="work", seed=0, text=text, reference="the grey kettle hummed")
    for setting, text in (("p_s", "a b"), ("p_r", "the grey kettle hummed"), ("mine", "the grey b"))
]
COPIED_SHARE = ("[anchored.metrics]", "copied_share = stranger:copied_share")


def test_a_package_s_metric_is_measured_tabled_and_recorded_and_changes_no_other_figure(install):
    before = json_value(copying_results(TEXTS))
    install("stranger", *COPIED_SHARE)
    after = json_value(copying_results(TEXTS))
    head, *lines = evaluation_table("copying", after).splitlines()
    assert "copied_share" in head and any("mine" in line and "0.667" in line for line in lines)
    assert after.pop("installed_metrics") == {"copying/copied_share": "stranger 1.0"}
    means = [row.pop("copying/copied_share") for row in after["settings"]]
    assert [mean["mean"] for mean in means] == [0.0, 1.0, 2 / 3]
    assert [row.pop("copying/copied_share") for row in after["rows"]] == [0.0, 1.0, 2 / 3]
    # What a row was scored by is another set of metrics.
    hashes = [{row.pop("scored") for row in results["rows"]} for results in (before, after)]
    assert not hashes[0] & hashes[1]
    assert after == before


def test_a_metric_that_cannot_be_measured_is_refused(install):
    install("stranger", "[anchored.metrics]", "half = operator:add")
    with pytest.raises(ValueError, match="copying/half must be a number, got 'ab'"):
        copying_score("a", "b")
