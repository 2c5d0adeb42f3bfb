"""Command lines that are refused: each has its exit code and a reason, changes no file, and loads no model."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import DOCUMENTS, Command
from tests.engine.calling import TOOLS

UNION = '<union name="u" required="true"><module name="day">a</module><module name="night">b</module></union>'
FILES = {
    "city.xml": '<prompt schema="travel"><plan days="3"/><miami/></prompt>',
    "tour.xml": f'<schema name="tour">{UNION}</schema>',
    "whole.xml": '<schema name="w"><include href="support.xml"/></schema>',
    "card.xml.j2": '<schema name="card">{{ text }}</schema>',
    "card.json": '{"text": "Hello."}',
    "cut.json": "{",
    "list.json": "[1]",
    "object.json": "{}",
    "not.json": '{"not": {}}',
    "two.json": json.dumps(TOOLS * 2),
    "code/unit.py": "mine",
    "mine-prompt.xml": "mine",
    "desk.xml": """<schema name="desk"><collection name="notes" src="notes.jsonl"><module name="own">A note.</module>
        </collection><module name="more"><collection name="tools"/></module></schema>""",
    "texts/deep/opening.txt": "Eight.",
    "texts/.hidden": "\udcff",
    "own.txt": "x",
    "opening.md": "Ten.",
    "empty.md": " \n",
    "bad.jsonl": "{}",
}
CASES = """
2  | chek | 'chek'
2  | chek --json |
2  | check | Missing argument
2  | check --json |
2  | check --jsn x | No such option
2  | check --jsn x --json |
2  | run x --seed y | 'y' is not allowed: a whole number from 0
2  | run x --seed y --json |
2  | cache x | No such command
2  | cache x --json |
2  | check travel.xml '' | the name of a file is empty
2  | check card.xml.j2 --context cut.json | is not JSON
2  | check card.xml.j2 --context list.json | an object is expected
3  | check card.xml.j2 --context gone.json | No such file or directory: gone.json; did you mean '
3  | check card.xml.j2 --context values.yaml | has no file *.yaml
2  | check travel.xml --json --context card.json | none was read
2  | layout travel.xml --json --context card.json | none was read
2  | grammar travel.xml --json --context card.json | none was read
2  | test travel.xml --json --context card.json | none was read
2  | render city.xml --context card.json | none was read
2  | run city.xml --json --context card.json | none was read
2  | chat --context card.json | none was read
2  | warm travel.xml --store kept --context card.json | none was read
2  | fmt travel.xml --context card.json | none was read
2  | fmt card.xml.j2 | is a template
3  | layout prompts | error[PC010]: this is a folder
3  | layout /dev/null | error[PC010]: this is a pipe or a device
3  | layout gone.xml | error[PC010]: there is no such file
3  | layout qqq | has broken.xml,
3  | layout travel.xml --model prompts | save the model's tokenizer there
2  | serve travel.xml | (travel.xml); an option names a file, as in --schema FILE
2  | serve --port http | 'http' is not allowed: a whole number from 0 to 65535 is expected
2  | fidelity travel.xml --max-kl one | 'one' is not allowed: a number from 0 on is expected
1  | layout broken.xml | error[PC208]
1  | layout travel.xml --prompt prompts/typo.xml | error[PC401]
2  | layout travel.xml --repair all | error: --repair is for a prompt; name it with --prompt PROMPT
2  | layout travel.xml --svg - | the name of a file is expected
2  | layout travel.xml --html '' | the name of a file is expected
2  | layout travel.xml --svg a --html a | --svg and --html both name a
3  | layout travel.xml --svg prompts | Is a directory: prompts
3  | layout travel.xml --svg nowhere/a.svg | No such file or directory: nowhere/a.svg
3  | layout travel.xml --svg travel.xml/a.svg | Not a directory: travel.xml/a.svg
2  | layout travel.xml --svg /dev/full | /dev/full is a pipe or a device: write to a file
3  | layout travel.xml --svg a.svg --html nowhere/a.html | directory: nowhere/a.html
2  | layout travel.xml --svg travel.xml | is what is read: write to another file
2  | layout travel.xml --html ./prompts/../travel.xml | is what is read: write to another file
2  | layout travel.xml --svg link.xml | is what is read: write to another file
2  | layout link.xml --prompt city.xml --svg a.svg --html city.xml | is what is read: write to another file
2  | layout card.xml.j2 --context card.json --svg card.json | is what is read: write to another file
2  | grammar travel.xml -o travel.xml | is what is read: write to another file
2  | grammar whole.xml -o support.xml | is what is read: write to another file
1  | grammar broken.xml -o broken.rng | error[PC208]
2  | grammar travel.xml -o - | the name of a file is expected
3  | grammar travel.xml -o {long} | File name too long
2  | new mine -o - | the name of a file is expected
2  | new mine -o prompts | prompts exists already; nothing was written
2  | new own -o own.txt | own.txt exists already; nothing was written
2  | new mine | error: mine-prompt.xml exists already; nothing was written
2  | new my --from code | error: code/unit.py exists already; nothing was written
3  | new x -o own.txt/x.xml | File exists: own.txt
3  | new {long} | File name too long
2  | new 'my schema' | text without spaces: write it as in `promptcache new travel-planner`
2  | new '' | text without spaces: write it as in `promptcache new travel-planner`
2  | new a/b | 'a/b' cannot be a file's name: say where to write with -o FILE
2  | new .. | '..' cannot be a file's name: say where to write with -o FILE
2  | new -- -v | '-v' cannot be a file's name: say where to write with -o FILE
2  | collect desk.xml note texts | desk.xml has no collection 'note'; did you mean 'notes'?
2  | collect desk.xml more/tools texts | has no file of members: write src="tools.jsonl" in desk.xml
2  | collect desk.xml notes texts --remove opning | notes.jsonl has no member 'opning'
2  | collect desk.xml notes texts texts/.hidden | texts/.hidden is not UTF-8 text: byte 0xff at 0
2  | collect desk.xml notes texts own.txt | the schema itself has a member 'own'
2  | collect desk.xml notes texts opening.md | texts/deep/opening.txt and opening.md both give member 'opening'
2  | collect desk.xml notes texts empty.md | empty.md is empty
1  | collect desk.xml notes texts bad.jsonl | PC224
3  | collect desk.xml notes texts none.txt | none.txt
2  | test travel.xml --prompts 5 | error: --prompts is the number of prompts for --model; give that too
2  | test prompts/miami.xml | error: prompts/miami.xml is a prompt; test takes schemas
2  | why PC4O1 | did you mean PC401,
2  | why x | lists all codes
2  | why ² | lists all codes
2  | why pc999 | lists all codes
2  | why pc40 | codes from PC401 to PC409 begin so
1  | run prompts/typo.xml | error[PC401]
1  | run prompts/lost.xml | no schema called 'nowhere' was found
1  | run prompts/broken.xml | error[PC208]
1  | run city.xml --schema support.xml | error[PC413]
1  | run city.xml --arg 'days=very long very long very long very long very long very long' | error[PC501]
1  | run city.xml --max-new-tokens 9999 | 9999 new tokens were asked for
2  | run city.xml --arg dais=3 | did you mean 'days'?
2  | run city.xml --max-new-tokens 0 | max-new-tokens
2  | run - --schema - | standard input (-) can only be one
3  | run prompts/gone.xml | error[PC010]
3  | run city.xml --schema gone.xml | error[PC010]
2  | run x --model missing --temperature 1e-300 | '1e-300' is not allowed: 0, or a finite
2  | run city.xml --seed 999999999999999999999999999999 | Invalid value for '--seed'
2  | run city.xml --limit 1GB | --store DIR
2  | run city.xml --tools cut.json | --tools cut.json: Expecting
2  | run city.xml --tools object.json | a list of tools
2  | run city.xml --tools two.json | two tools
2  | run city.xml --json-schema cut.json | --json-schema cut.json: the JSON schema of the answer is not JSON
2  | run city.xml --json-schema not.json | Unimplemented keys
3m | run city.xml --device cuda:99 | device 'cuda:99' cannot be used
3m | run city.xml --device toaster | device 'toaster' cannot be used: Expected one of cpu, cuda
2  | run city.xml --context-length 0 | '0' is not allowed: a whole number of positions from 1 on
1  | render prompts/typo.xml | error[PC401]
1  | render prompts/lost.xml | no schema called 'nowhere' was found
1  | render prompts/broken.xml | error[PC208]
1  | render city.xml --arg 'days=very long very long very long very long very long very long' | error[PC501]
2  | render - --schema - | standard input (-) can only be one
2  | render city.xml --arg {bytes} | --arg: the text is not UTF-8
3  | render prompts/gone.xml | error[PC010]
2  | chat - | standard input has the questions
2  | chat travel.xml --load x | --load: a saved chat has its prompt
2  | chat travel.xml --schema travel.xml | --schema is for prompts
2  | chat --arg a=b | name a SCHEMA or PROMPT
3  | chat --load gone.json | gone.json: cannot be read
2  | chat --load travel.xml | travel.xml is not a saved chat
2  | chat travel.xml --limit 1GB | --store DIR
2  | chat city.xml --tools object.json | a list of tools
1  | chat prompts/typo.xml | error[PC401]
1  | chat city.xml --max-new-tokens 9999 | 9999 new tokens were asked for
1  | chat tour.xml | add <day/> or <night/>, in a prompt, and start the chat over the prompt
2  | fidelity card.xml.j2 --write | is a template
2  | fidelity - --write | standard input
2m | fidelity travel.xml --setting context=all |
3  | warm gone.xml | error[PC010]
1  | warm broken.xml | error[PC208]
3m | warm travel.xml --store travel.xml | is not a folder
2  | warm travel.xml --store x --limit many | 'many' is no size
2m | warm travel.xml --store memory://x --limit 1GB | only folders have a limit
3m | warm travel.xml --store travel.xml/kept | , or name another place
3m | warm travel.xml --store ~nobody-here/x | no such user here
3  | cache ls --store nowhere | does not exist
3  | cache ls --store travel.xml | is not a folder
3  | cache ls --store ~nobody-here/x | no such user here
3  | cache ls --store prompts | is no store
2  | cache ls --store s3://x | only folders can be looked into
2  | bench decode --dtype int32 | 'int32' is not one of 'float32', 'bfloat16', 'float16', 'float64'
3m | bench decode --device gpu | device 'gpu' cannot be used
3m | bench decode --device gpu --json | device 'gpu' cannot be used
3m | bench decode --device meta | device 'meta' holds no values
3m | bench decode --device xpu | device 'xpu' cannot be used
3m | bench decode --model no/such/folder | no/such/folder
2  | bench decode --threads 99999999999999999999 | Invalid value for '--threads'
2  | bench decode --modules 0 | Invalid value for '--modules'
2  | bench decode --modules six | Invalid value for '--modules'
1m | bench decode --modules 999999999999 | are needed: give smaller numbers of modules and tokens
"""
ROWS = [[cell.strip() for cell in line.split("|", 2)] for line in CASES.strip().splitlines()]


@pytest.mark.parametrize(("code", "words", "message"), ROWS, ids=[row[1] for row in ROWS])
def test_mistakes(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str, message: str
) -> None:
    """Checks that need no model come first; an error is alone on stderr, or JSON on stdout; every file stays as it was."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    if "link" in words:
        (folder / "link.xml").symlink_to("travel.xml")
    if not code.endswith("m"):
        monkeypatch.setitem(sys.modules, "promptcache.engine", None)
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    given = [word.format(long="n" * 300, bytes=os.fsdecode(b"days=\xff")) for word in shlex.split(words)]

    result = command(*given, stdin=DOCUMENTS["prompts/miami.xml"])

    said = json.loads(result.stdout)["error"] if "--json" in given else result.stderr
    assert (result.exit_code, message in said) == (int(code[0]), True), result.output
    assert (result.stdout == "") != (result.stderr == "")
    assert "Traceback" not in result.stderr
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before
