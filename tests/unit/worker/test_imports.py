"""The modules that a worker imports first."""

import pytest

from perdure import InvalidCall, Perdure


@pytest.mark.parametrize(("module", "missing"), [("no_such_shop", "no_such_shop"), ("json.tasks", "json.tasks")])
async def test_a_module_that_is_not_there_is_named(module, missing):
    app = Perdure("memory://", imports=[module])
    with pytest.raises(InvalidCall, match=f"no module '{missing}' to import"):
        await app.worker().start()


async def test_what_a_module_cannot_import_is_its_own_fault(tmp_path, monkeypatch):
    (tmp_path / "shop_that_breaks.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        await Perdure("memory://", imports=["shop_that_breaks"]).worker().start()
