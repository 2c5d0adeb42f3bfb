"""A prompt file to a request that has passed every check that needs no model.

Comes in: file names and `--arg` words. Goes out: the checked schema and the prompt. This file loads no model; what is
counted in tokens is checked with the model's tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptcache.cli.arguments import parameter_names, with_arguments
from promptcache.cli.files import checked_schema, find_schema, parsed_prompt, read
from promptcache.cli.model_folder import Dtype, declared_positions
from promptcache.cli.sources import Sources
from promptcache.language import CheckedSchema, Prompt, Selection, resolve_prompt
from promptcache.language.schema import Parameter
from promptcache.layout import (
    Layout,
    Plan,
    check_length,
    check_positions,
    lay_out,
    make_plan,
    run_states,
)
from promptcache.tokenizer import HubTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A prompt with the schema that it is for, and the files of both."""

    prompt_file: str
    schema_file: str
    prompt: Prompt
    schema: CheckedSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asks for; None leaves it to the engine or the model.

    Attributes:
        warm: Encode what is missing, and compute once, before the request's clock starts.
        store: A folder or URL where KV rests; None keeps it in memory.
        limit: Of that folder, in bytes.
        keep: Name of a codec.
    """

    model: str
    device: str | None
    dtype: Dtype
    max_new_tokens: int | None
    seed: int | None
    temperature: float | None
    warm: bool
    store: str | None = None
    limit: int | None = None
    keep: str = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What a model's tokenizer and configuration decide: whether texts fit their slots, and all of it the positions.

    Attributes:
        max_positions: None where the configuration does not say.
    """

    tokenizer: HubTokenizer
    max_positions: int | None

    @classmethod
    def of(cls, folder: Path) -> TokenLimits:
        """Read them from a model's folder."""
        return cls(tokenizer=HubTokenizer.from_folder(folder), max_positions=declared_positions(folder))

    def lay_out(self, schema: CheckedSchema) -> Layout:
        """Lay a schema out, as an engine does that is given it.

        Raises:
            SchemaError: A filler longer than its slot, or more positions than the model has.
        """
        layout = lay_out(schema, self.tokenizer)
        if self.max_positions is not None:
            check_length(layout, self.max_positions)
        return layout

    def plan(self, selection: Selection, layout: Layout, max_new_tokens: int = 1) -> Plan:
        """Plan a prompt, as an engine does that is asked it.

        Raises:
            PromptError: An argument longer than its slot, or an empty prompt.
            ContextLengthExceeded: Prompt and answer need more positions than the model has.
        """
        plan = make_plan(selection, layout, run_states(layout), self.tokenizer)
        if self.max_positions is not None:
            check_positions(plan, self.max_positions, max_new_tokens)
        return plan


def read_request(file: str, schema_files: Sequence[str], words: Sequence[str], sources: Sources) -> CheckedRequest:
    """Read a prompt and its schema, put the arguments of the command line in, and check them all.

    Raises:
        LanguageError: every fault of the prompt, or of the schema; the prompt's schema was not found.
        UsageMistake: an argument for a parameter that the prompt does not have.
    """
    request = _read(file, schema_files, sources)
    prompt, schema = request.prompt, request.schema
    if prompt.schema == schema.name:
        prompt = with_arguments(prompt, schema, words)
    resolve_prompt(prompt, schema)
    return replace(request, prompt=prompt)


def open_parameters(file: str, schema_files: Sequence[str], sources: Sources) -> list[tuple[str, Parameter]]:
    """Return the parameters of a prompt, by the names that `--arg` takes.

    Raises:
        PromptCacheError: a document cannot be used, or is not there.
    """
    request = _read(file, schema_files, sources)
    return list(parameter_names(request.prompt, request.schema))


def _read(file: str, schema_files: Sequence[str], sources: Sources) -> CheckedRequest:
    """Read a prompt and its schema, each checked on its own."""
    document = read(file, sources)
    prompt = parsed_prompt(document)
    offered = [read(name, sources) for name in schema_files]
    found = find_schema(prompt, document, (), offered, sources)
    schema = checked_schema(found)
    sources.check_context()
    return CheckedRequest(prompt_file=document.name, schema_file=found.name, prompt=prompt, schema=schema)


def plan_request(request: CheckedRequest, limits: TokenLimits, max_new_tokens: int = 1) -> Plan:
    """Plan a request; so everything that is counted in tokens is checked. Errors are those of `TokenLimits`."""
    selection = resolve_prompt(request.prompt, request.schema)
    return limits.plan(selection, limits.lay_out(request.schema), max_new_tokens)
