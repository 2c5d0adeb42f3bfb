"""`promptcache chat`: a conversation in the terminal, or with questions from a pipe.

Answers go to stdout and everything else to stderr. All checks that need no model are made before the model is loaded.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from promptcache.cli.documents import InputDocument, Sources, check_target, files_read
from promptcache.cli.exits import (
    EnvironmentMissing,
    ExitCode,
    UsageMistake,
    ending,
    exit_code,
    show_error,
    system_message,
)
from promptcache.cli.options import DOCUMENT, FILE, GroupedCommand, context_option, schemas_option
from promptcache.cli.output import end_answer, tell, warn, write_text
from promptcache.cli.request import CheckedRequest, check_lengths, complete_request, read_chat_request
from promptcache.cli.settings import AnswerOptions, answer_options
from promptcache.diagnostics import ROOT, InvalidValue, PromptCacheError, counted, did_you_mean
from promptcache.language import CHAT_SCHEMA, split_question

if TYPE_CHECKING:
    from promptcache.decode import Completion
    from promptcache.session import Chat
    from promptcache.structured import ToolCall

_BLOCK = '"""'
_HELP = f"""\
/usage       what the last answer reused and prefilled
/rewind [N]  forget the last question with its answer, or the last N
/save FILE   write this chat to a file; promptcache chat --load FILE continues it
/help        show this list
/quit        end; so does Ctrl-D

Ctrl-C stops an answer, and the chat is as before its question. At the prompt, Ctrl-C clears the line.
Text between two lines {_BLOCK} is one question, as it is. A question that begins with / needs a space before it.
After an answer that calls tools, the next entry is what the tool returns; /rewind forgets the call."""


@click.command("chat", cls=GroupedCommand)
@click.argument("document", metavar="[SCHEMA|PROMPT]", required=False, type=DOCUMENT)
@schemas_option
@click.option("--load", metavar="FILE", type=FILE, help="Continue a chat that /save wrote.")
@answer_options()
@context_option
def command(
    document: str | None, schema: tuple[str, ...], load: Path | None, options: AnswerOptions, context: Path | None
) -> None:
    """Hold a conversation in the terminal, over a schema, a prompt or a saved chat.

    With SCHEMA, the chat has what the schema always has, and no optional module; if the rules of the schema require a
    choice, an error names it. To choose modules, write a PROMPT. If a PROMPT ends with a user's turn, this is the first
    question. Without either, the chat has the model alone.

    /help shows the commands of a chat. Questions from a pipe are one line each.

    Example: promptcache chat prompt.xml --model FOLDER
    """
    with ending(as_json=False):
        sources = Sources(context)
        generation = dict(options.answer)
        repair = generation.pop("repair", None)
        options.read_tools(())  # before anything else is read
        if load is None:
            request = _read(document, schema, options.arg, sources)
            prompt, question = (None, None) if request is None else split_question(request.prompt)
        elif document is None and not options.arg and repair is None:
            request, prompt, question = _read_saved(load, schema, sources), None, None
        else:
            raise UsageMistake("--load: a saved chat has its prompt, arguments and repair; leave them out")
        sources.check_context()
        if request is not None and prompt is not None:
            asked = replace(request, prompt=prompt.user(question or "?"))
            check_lengths(asked, options.engine.model, options.answer)
        engine = options.engine.load()
        read = files_read(sources)
        if request is not None:
            engine.add_schema(request.schema.source)
            read = files_read(sources, request.schema)
        tools = options.read_tools(() if request is None else request.tools)
        chat = engine.load_chat(load, tools=tools) if load else engine.chat(prompt, repair=repair, tools=tools)
        if code := _Conversation(chat, generation, read).hold(question):
            raise Exit(code)


def _read(document: str | None, schema: Sequence[str], arg: Sequence[str], sources: Sources) -> CheckedRequest | None:
    """Read the prompt below a chat; None is the chat of the model alone."""
    if document == "-":
        raise UsageMistake("standard input has the questions: name a file")
    if document is not None:
        return read_chat_request(document, schema, arg, sources)
    if schema or arg:
        raise UsageMistake("--schema and --arg are for a prompt: name a SCHEMA or PROMPT")
    return None


def _read_saved(load: Path, schema: Sequence[str], sources: Sources) -> CheckedRequest | None:
    """Read the prompt below a saved chat, and find its schema; None is the chat of the model alone."""
    from promptcache.session import read_chat

    try:
        prompt = read_chat(load).prompt
    except InvalidValue as error:
        if isinstance(error.__cause__, OSError):
            raise EnvironmentMissing(f"--load {error}") from None
        raise
    if prompt.schema == CHAT_SCHEMA:
        return None
    return complete_request(prompt, InputDocument(name=str(load), path=load, data=b""), schema, (), sources)


class _Conversation:
    """A chat, and the commands that the user can give. Errors of a question or a command are shown, and it goes on."""

    def __init__(self, chat: Chat, options: dict[str, Any], read: frozenset[str]) -> None:
        """Begin to read standard input. On a terminal, lines can be edited and called back.

        Args:
            options: Options of generation.
            read: Names of the files that `/save` must not replace.
        """
        self._chat = chat
        self._options = options
        self._read = read
        self._answer: Completion | None = None
        self._results = list[str]()  # of calls of the last answer, as far as they were entered
        self._code = ExitCode.OK
        self._on_terminal = sys.stdin.isatty()
        self._editing = self._on_terminal and sys.stdout.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            encoding = None if self._on_terminal else "utf-8"
            sys.stdin.reconfigure(encoding=encoding, errors="surrogateescape")  # a question that is not text is refused
        if self._editing:
            with suppress(ModuleNotFoundError):  # then lines are read without editing
                import readline

                if "libedit" not in (readline.__doc__ or ""):
                    readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one entry

    def hold(self, first: str | None) -> ExitCode:
        """Answer questions until the input ends.

        Args:
            first: The question at the end of the prompt, which comes before the input.

        Returns:
            The code of the first error of input from a pipe. On a terminal, errors do not count.
        """
        if self._on_terminal:
            turns = f", {counted(len(self._chat.turns), 'question')} so far" if self._chat.turns else ""
            about = "" if self._chat.prompt.schema == CHAT_SCHEMA else f" over {self._chat.prompt.schema}"
            tell(f"chat{about}{turns}; /help shows the commands, /quit or Ctrl-D ends")
        if first is not None:
            if self._on_terminal:
                tell(f"> {first}")
            self._guarded(self._take, first)
        while (entry := self._next_entry()) is not None:
            text, is_command = entry
            if is_command and text == "/quit":
                break
            if is_command:
                self._guarded(self._obey, text)
            elif text.strip():
                self._guarded(self._take, text)
        return ExitCode.OK if self._on_terminal else self._code

    @property
    def _open_calls(self) -> Sequence[ToolCall]:
        """The calls of the last answer whose results were not entered yet."""
        turns = self._chat.turns
        return turns[-1].tool_calls[len(self._results) :] if turns else ()

    def _guarded(self, act: Callable[[str], None], text: str) -> None:
        """Answer a question or obey a command; show its error."""
        try:
            act(text)
        except PromptCacheError as error:
            show_error(error)
            self._code = self._code or exit_code(error)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            tell(f"error: {system_message(error)}")
            self._code = self._code or ExitCode.ENVIRONMENT

    def _take(self, text: str) -> None:
        """Answer a question, or take the result of a call; the last one is answered."""
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            byte = ord(text[fault.start]) & 0xFF  # surrogateescape: 0xDC00 and the byte
            raise UsageMistake(f"byte 0x{byte:02x} of the input is not UTF-8; convert the question to UTF-8") from None
        if not self._open_calls:
            self._answer_to(text)
            return
        self._results.append(text)
        if not self._open_calls:
            results, self._results = self._results, []
            self._answer_to(None, results)

    def _answer_to(self, question: str | None, results: Sequence[str] = ()) -> None:
        before = self._chat.turns
        try:
            with self._chat.stream(question, results=results, **self._options) as stream:
                for piece in stream:
                    write_text(piece)
        except KeyboardInterrupt:
            if not self._on_terminal:
                raise
            if self._chat.turns is not before:  # the answer was complete
                self._chat.rewind()
            write_text("\n")
            tell("stopped; the chat is as before this question")
            return
        assert stream.completion is not None, "an exhausted stream has its completion"
        self._answer = stream.completion
        end_answer(self._answer)
        warn(*self._answer.usage.faults)

    def _obey(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest, asked = rest.strip(), len(self._chat.turns)
        match name:
            case "/usage":
                if self._answer is None:
                    raise UsageMistake("/usage: nothing was answered yet")
                tell(*_usage_lines(self._answer))
            case "/rewind":
                number = rest or "1"
                if not (number.isdecimal() and len(number) < 10 and 1 <= int(number) <= asked):
                    raise UsageMistake(f"/rewind {number}: a number of questions is expected; the chat has {asked}")
                self._chat.rewind(int(number))
                self._results = []
                left = counted(len(self._chat.turns), "question")
                tell(f"forgot {counted(int(number), 'question')}; the chat has {left}")
            case "/save":
                if not rest:
                    raise UsageMistake("/save: the name of a file is expected")
                path = Path(rest).expanduser()
                check_target(path, self._read)
                self._chat.save(path)
                tell(f"saved {counted(asked, 'question')} to {path}")
            case "/help":
                tell(*_HELP.splitlines())
            case _:
                known = ("/usage", "/rewind", "/save", "/help", "/quit")
                fix = did_you_mean(name, known) or "a question may begin with a space"
                raise UsageMistake(f"there is no command '{name}'; {fix}")

    def _next_entry(self) -> tuple[str, bool] | None:
        """Return the next entry, and whether it is a command; None at the end of the input. Its text may be empty.

        Ctrl-C on a terminal drops what was entered.
        """
        calls = self._open_calls
        try:
            line = self._line(f"result of {calls[0].name}> " if calls else "> ")
            if line.strip() != _BLOCK:
                return line.strip(), line.startswith("/") and "\n" not in line
            lines = list[str]()
            with suppress(EOFError):  # the end of the input also ends a block
                while (line := self._line("... ")).strip() != _BLOCK:
                    lines.append(line)
            return "\n".join(lines), False
        except EOFError:
            if self._on_terminal:
                tell("")
            return None
        except KeyboardInterrupt:
            if not self._on_terminal:
                raise
            tell("")
            return "", False

    def _line(self, prompt: str) -> str:
        """Return a line without its end.

        Raises:
            EOFError: The input has ended.
        """
        if self._editing:
            return input(prompt)
        if self._on_terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


def _usage_lines(answer: Completion) -> list[str]:
    """Describe what an answer reused and prefilled, one line for each origin of KV."""
    usage = answer.usage
    modules = [each for each in usage.modules if each.source != "history"]
    names = ", ".join(f"{each.module or ROOT} {each.num_tokens:,} {each.source}" for each in modules)
    new = f"{usage.num_encoded_tokens:,} of modules were encoded for it" if usage.num_encoded_tokens else ""
    rows = [
        ("modules", usage.num_reused_tokens, names),
        ("history", usage.num_history_tokens, "computed by earlier answers"),
        ("new", usage.num_new_tokens, "prefilled for this answer"),
        ("answer", usage.num_generated_tokens, "all that were allowed" if answer.finish_reason == "length" else ""),
    ]
    lines = [f"{name:<8} {number:>6,} tokens  {words}".rstrip() for name, number, words in rows]
    level = f"{answer.level}, lossy" if answer.lossy else str(answer.level)
    return [*lines, " · ".join(each for each in (f"TTFT {answer.timing.ttft_s * 1000:.1f} ms", level, new) if each)]
