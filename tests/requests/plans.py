"""The modular plans of drawn requests, the features of each by name, and the pairs that cannot be together. No model is run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from promptcache.kv import Codec
from promptcache.language import (
    CheckedUnion,
    Context,
    Prompt,
    Repair,
    RepairKind,
    parse_prompt,
    resolve_prompt,
    split_question,
    walk_checked,
)
from promptcache.layout import Level, Origin, Piece, Plan, scaffolds_in_use
from promptcache.planning import ServedSchema, serve_schema
from promptcache.planning.turns import ChatPrompt, ChatTurn, with_turns
from promptcache.rows.history import stretches
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import CONTEXT
from tests.laws.position_oracle import SLOTS
from tests.requests.workloads import (
    CONFLICTS,
    DRAFTS,
    MODELS,
    OPTIONS,
    OUTPUTS,
    Ask,
    Conflicts,
    Step,
    Way,
    Workload,
    conflict,
)

VOCABULARY = ByteTokenizer()


def state_of(workload: Workload) -> ServedSchema:
    return serve_schema(workload.schema, VOCABULARY, CONTEXT, Codec(workload.codec))


@dataclass(frozen=True, slots=True)
class Promoted:
    """Tokens that were promoted, with their positions; they belong to a salt if an argument is among them."""

    tokens: tuple[tuple[int, int], ...]
    salt: str | None
    has_argument: bool


def combined(plan: Plan, salt: str | None) -> Promoted | None:
    """Return the tokens of a modular plan up to its last stored one; None if it is exact."""
    if plan.level is Level.EXACT:
        return None
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source or piece.origin is Origin.LAST)
    pieces = plan.pieces[: last + 1]
    return Promoted(_tokens(pieces), salt, any(piece.origin is Origin.ARGUMENT for piece in pieces))


def _tokens(pieces: Sequence[Piece]) -> tuple[tuple[int, int], ...]:
    return tuple(each for piece in pieces for each in zip(piece.position_ids, piece.token_ids, strict=True))


def promoted_tokens(workload: Workload, state: ServedSchema) -> Promoted | None:
    """Return what is promoted of the first request before it; None if nothing is."""
    ask = workload.steps[0].asks[0]
    if not workload.promoted or not workload.has_history:
        return None
    return combined(plan_of(workload, state, replace(ask, reuse=True, repair=None), Way.GENERATE), ask.salt)


def promoted_plan(plan: Plan, promoted: Promoted | None, ask: Ask, way: Way, computed: Sequence[Promoted] = ()) -> Plan:
    """Return the plain plan if all that a request combines is promoted, or `computed` before; else the plan."""
    own = combined(plan, ask.salt)
    if promoted is None or own is None or way is Way.LINK:
        return plan
    known = [each for each in (promoted, *computed) if not each.has_argument or each.salt == ask.salt]
    return plan.plain() if any(each.tokens[: len(own.tokens)] == own.tokens for each in known) else plan


def computed_tokens(plan: Plan, salt: str | None) -> Promoted:
    return Promoted(_tokens(plan.pieces), salt, has_argument=True)


def plan_of(workload: Workload, state: ServedSchema, ask: Ask, way: Way, turns: Sequence[ChatTurn] = ()) -> Plan:
    """Return the modular plan of a request, behind the turns of its chat before it."""
    prompt = parse_prompt(workload.prompts[ask.prompt])
    repair = Repair.parse(ask.repair) if ask.repair else state.schema.repair or SLOTS
    if way is Way.CHAT:
        chat = ChatPrompt(prompt=without_text(prompt), turns=tuple(turns), question=ask.said)
        selection, answers = with_turns(resolve_prompt(chat.prompt, state.schema), state.layout, chat)
        return state.plan(selection, repair, answers)
    plan = state.plan(resolve_prompt(prompt, state.schema), repair)
    return plan if ask.reuse else plan.plain()


def without_text(prompt: Prompt) -> Prompt:
    """Return a prompt without its bare text and the questions at its end, which a chat would answer first."""
    prompt = replace(prompt, messages=tuple(each for each in prompt.messages if each.role is not None))
    question: str | None = ""
    while question is not None:
        prompt, question = split_question(prompt)
    return prompt


OTHER_WAYS = frozenset(Way) - {Way.SERVICE}
REPAIRS = ("repair none", "repair slots", "repair first", "repair attended", "repair all")

FEATURES: tuple[str, ...] = (
    *("module", "nested module", "union", "scaffold", "own context", "previous context", "uncached module"),
    *("argument below a module", "changed slot", "slot as encoded", "default", "empty slot"),
    *("turns in the schema", "turns in the prompt", "bare text"),
    *(*REPAIRS, "computed again"),
    *(*MODELS, "views", "coalesced", "no history", "history hit", "salt", "int8", "promoted"),
    *(*Way, "in company", "reuse=False"),
    *OPTIONS,
)
"""All features. Options have their own names; ways and models, too."""

_EXCLUSIVE: tuple[tuple[str, ...], ...] = (
    tuple(Way),
    MODELS,
    REPAIRS,
    ("views", "coalesced"),
    ("no history", "history hit"),
    ("turns in the prompt", "bare text"),
)
"""Values of which a request has one."""

_ALONE = frozenset({Way.GENERATE, Way.STREAM, Way.CHAT, Way.LINK})

_IMPOSSIBLE: Conflicts = (
    *CONFLICTS,
    (frozenset({"in company"}), _ALONE, "one request at a time"),
    (frozenset({"reuse=False"}), OTHER_WAYS, "an option of a service"),
    (frozenset({"salt"}), frozenset({Way.LINK}), "a link uses no history"),
    (frozenset({"bare text"}), frozenset({Way.CHAT}), "a chat asks its own text"),
    (
        frozenset({"history hit"}),
        frozenset({Way.LINK, "reuse=False", "length_penalty"}) | DRAFTS | OUTPUTS,
        "no history is used",
    ),
    (
        frozenset({"reuse=False"}),
        frozenset({"argument below a module", *REPAIRS[:-1]}),
        "all tokens are computed again",
    ),
    (frozenset({"repair all"}), frozenset({"argument below a module"}), "all tokens are computed again"),
    (frozenset({"repair none"}), frozenset({"computed again"}), "nothing is computed again"),
    (frozenset({"promoted"}), frozenset({Way.LINK, "reuse=False", "repair all", "no history"}), "no promotion is used"),
)
"""Pairs that cannot be together, with the reason."""


def reason_against(one: str, other: str) -> str | None:
    """Return why two features cannot be together; None if they can."""
    if (reason := _direct_reason(one, other)) is not None:
        return reason
    if any(_direct_reason(one, way) is None is _direct_reason(other, way) for way in Way):
        return None
    return "no way of asking has both"


@cache
def _direct_reason(one: str, other: str) -> str | None:
    if one == other:
        return None
    for values in _EXCLUSIVE:
        if one in values and other in values:
            return "a request has one of these"
    return conflict(one, other, _IMPOSSIBLE)


def possible_pairs() -> Iterator[tuple[str, str]]:
    return (pair for pair in combinations(FEATURES, 2) if reason_against(*pair) is None)


def count_pairs(counts: Counter[tuple[str, str]], workload: Workload) -> None:
    """Add the requests of a workload to the counts of pairs; a pair of one feature counts the feature."""
    for found in features(workload):
        present = [name for name in FEATURES if name in found]
        counts.update(combinations(present, 2))
        counts.update((name, name) for name in present)


def features(workload: Workload) -> Iterator[frozenset[str]]:
    state = state_of(workload)
    promoted = promoted_tokens(workload, state)
    history: set[tuple[str, str | None, int]] = set()
    for step in workload.steps:
        added: set[tuple[str, str | None, int]] = set()
        turns: tuple[ChatTurn, ...] = ()
        for ask in step.asks:
            modular = plan_of(workload, state, ask, step.way, turns)
            plan = promoted_plan(modular, promoted, ask, step.way)
            found = {*_of_plan(modular, step.way is Way.CHAT), *_of_ask(ask, step, workload, modular)}
            found |= {"promoted"} if plan is not modular else set()
            if not plan.awaits_choice and not any(reason_against("history hit", name) for name in found):
                known = history | added if turns else history
                if not known.isdisjoint(_stretches(plan, ask.salt)):
                    found.add("history hit")
                added.update(_stretches(plan, ask.salt))
            if step.way is Way.CHAT:
                turns = (*turns, ChatTurn(question=ask.said, answer="a", token_ids=(97,)))
            yield frozenset(found)
        history |= added


def _stretches(plan: Plan, salt: str | None) -> Iterator[tuple[str, str | None, int]]:
    """Yield each stretch of own tokens, whose beginning history keeps, as its key, salt and first token."""
    token_ids = plan.tokens.token_ids
    for each in stretches(plan.tokens, salt):
        if each.start + 1 < len(token_ids):  # the last token is always computed
            yield each.key, salt, token_ids[each.start]


def _of_ask(ask: Ask, step: Step, workload: Workload, plan: Plan) -> Iterator[str]:
    yield from (step.way, workload.model, f"repair {plan.repair.kind if ask.reuse else RepairKind.ALL}")
    yield from (name for name, value in ask.options.items() if value is not False and name in OPTIONS)
    named: Mapping[str, bool] = {
        "in company": step.way in (Way.BATCH, Way.SERVICE) and len(step.asks) > 1,
        "salt": ask.salt is not None and step.way is not Way.LINK,
        "reuse=False": not ask.reuse,
        "views": workload.small_tokens == 0,
        "coalesced": workload.small_tokens > 0,
        "no history": not workload.has_history,
        "int8": workload.codec == "int8",
        "scaffold": bool(scaffolds_in_use(plan.selection.schema.scaffolds, plan.selection.modules)),
    }
    yield from (name for name, holds in named.items() if holds)


def _of_plan(plan: Plan, is_chat: bool) -> Iterator[str]:
    selection, schema = plan.selection, plan.selection.schema
    modules = [schema.modules[path] for path in selection.modules]
    members = {
        member.path
        for item in walk_checked(schema.children)
        if isinstance(item, CheckedUnion)
        for member in item.members
    }
    arguments = [each for each in plan.new if each.origin is Origin.ARGUMENT]
    last_reused = max((each.source.last for each in plan.reused), default=-1)
    named: Mapping[str, bool] = {
        "module": bool(modules),
        "nested module": any(each.parent for each in modules),
        "union": any(each.path in members for each in modules),
        "own context": any(each.context is Context.OWN for each in modules),
        "previous context": any(each.context is Context.PREVIOUS for each in modules),
        "uncached module": any(not each.cache for each in modules),
        "argument below a module": any(each.start < last_reused for each in arguments),
        "turns in the schema": schema.has_turns,
        "turns in the prompt": any(each.role is not None for each in selection.messages[: -1 if is_chat else None]),
        "bare text": any(each.role is None for each in selection.messages) and not is_chat,
        "computed again": plan.num_repaired_tokens > 0,
    }
    yield from (name for name, holds in named.items() if holds)
    yield from _of_slots(plan)


def _of_slots(plan: Plan) -> Iterator[str]:
    given = {(each.module, each.parameter): each.text for each in plan.selection.arguments}
    for path in ("", *plan.selection.modules):
        for index in plan.layout.runs_of.get(path, ()):
            for slot in plan.layout.runs[index].slots:
                text = given.get((slot.module, slot.parameter))
                content = slot.default_ids if text is None else VOCABULARY.tokenize(slot.lead + text)
                if text is None:
                    yield "default"
                if len(content) <= len(slot.lead):
                    yield "empty slot"
                yield "slot as encoded" if content == slot.token_ids else "changed slot"
