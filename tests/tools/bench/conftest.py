"""Benchmarks without the authors' package, which need not be here and may not be importable."""

import pytest

from anchored.tools.bench import baselines


@pytest.fixture(autouse=True)
def no_official_package(monkeypatch):
    monkeypatch.setattr(baselines, "PACKAGE", "no_package_of_this_name")
