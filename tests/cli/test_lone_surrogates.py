"""JSON can spell half a character, which no encoding can write: it is printed as it was spelled."""

import json

import click
from click.testing import CliRunner

from perdure.cli.output import print_json


def test_half_a_character_is_printed_as_it_was_spelled():
    @click.command()
    def show() -> None:
        print_json({"payload": json.loads('"a\\ud800b"')})

    done = CliRunner().invoke(show)
    assert done.exception is None
    assert '"a\\ud800b"' in done.output
    assert json.loads(done.output) == {"payload": "a\ud800b"}
