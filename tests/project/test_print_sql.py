"""`./dev sql` prints every statement of the SQL stores, with nothing left to be put together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.storage.postgres.claiming.claim import LANES

ROOT = Path(__file__).resolve().parents[2]


def printed(*arguments: str) -> str:
    command = [sys.executable, ROOT / "scripts" / "print_sql.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_statement_of_a_store_is_printed(store):
    titles = re.findall(r"^-- (\S+): (\w+)", printed(store), re.MULTILINE)
    for file in (ROOT / "src" / "perdure" / "storage" / store / "queries").glob("*.sql"):
        blocks = file.read_text("utf-8").split("-- name: ")[1:]
        statements = [block.partition("\n")[0].strip() for block in blocks if block.rstrip().endswith(";")]
        path = str(file.relative_to(ROOT))
        assert [name for name in statements if (path, name) not in titles] == []


def test_all_variants_of_a_claim_are_printed_whole():
    text = printed("postgres", "claim")
    assert len(re.findall(r"claim\.sql: take, variant", text)) == 2 * len(LANES)
    assert len(re.findall(r"claim\.sql: exchange, variant", text)) == 6 * len(LANES)
    assert re.findall(r"\{[a-z_]+\}", text.partition("caller_insert")[0]) == []


def test_a_name_filters_what_is_printed():
    assert set(re.findall(r"^-- \S+/(\w+)\.sql", printed("postgres", "kv"), re.MULTILINE)) == {"kv"}
