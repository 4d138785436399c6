"""The import law as an import-linter contract: which modules may know which.

The built-in contracts forbid; this one allows. A module listed under `modules` may import itself, what lies inside it,
and what `may_import` names, and nothing else of the package. Modules that do not exist are passed over, so that
the law can be written before the code.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class KnowsContract(Contract):
    """The modules import nothing of the package but themselves and what may_import names."""

    type_name = "knows"

    modules: Any = fields.ListField(subfield=fields.StringField())
    may_import: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = [
            (importer, imported, _lines(graph, importer, imported))
            for module in self.modules
            for importer in sorted(name for name in graph.modules if _inside(name, module))
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not any(_inside(imported, allowed) for allowed in [module, *self.may_import])
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, imported, lines in check.metadata["broken"]:
            output.print_error(f"{importer} may not import {imported} ({lines})", bold=False)
        output.new_line()
        output.print("It may import: " + ", ".join(self.may_import))
        output.new_line()


def _inside(name: str, module: str) -> bool:
    """Whether `name` is `module` or lies in it. A root package stands for its __init__ alone: the public door."""
    return name == module or ("." in module and name.startswith(module + "."))


def _lines(graph: ImportGraph, importer: str, imported: str) -> str:
    details = graph.get_import_details(importer=importer, imported=imported)
    return ", ".join(f"line {detail['line_number']}" for detail in details)
