"""The package of tools/python/sparkguard, for programs that have this folder in their path."""

import importlib.util
import sys
from pathlib import Path

_folder = Path(__file__).resolve().parent / "python/sparkguard"
_spec = importlib.util.spec_from_file_location(__name__, _folder / "__init__.py", submodule_search_locations=[str(_folder)])
assert _spec is not None and _spec.loader is not None
sys.modules[__name__] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])

if __name__ == "__main__":  # python -m sparkguard, with this folder in the path
    import runpy

    sys.path.insert(0, str(_folder.parent))
    del sys.modules[__name__]
    sys.modules.pop("sparkguard", None)
    runpy.run_module("sparkguard", run_name="__main__", alter_sys=True)
