"""The rule of `stranger/`, imported without its package being installed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("stranger_of_tests", Path(__file__).parent / "stranger/stranger.py")
_module = module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
Blend = _module.Blend
