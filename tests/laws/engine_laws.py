"""The laws of cached answers; each is a function of a service and selections that raises `BrokenLaw`.

`ENGINE_LAWS` lists those of one prompt. The error says how far the logits are from those they must equal.
"""

from dataclasses import replace

import torch

from promptcache.encode import linked_logits, prepare
from promptcache.language import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText, Repair, Selection
from promptcache.layout import Level
from promptcache.model import reference_logits, used_tokens
from promptcache.model.reference import plain_logits
from promptcache.testing.cached import distance
from tests.laws.attended_oracle import attended
from tests.laws.laws import BrokenLaw, Law, Over
from tests.laws.service import SchemaServer

_NUM_GENERATED = 3
_REPAIRS = ("first-1", "all")


def cached_is_reference(service: SchemaServer, selection: Selection) -> None:
    """Linked KV gives the logits of one forward pass under an explicit mask."""
    _near(
        service,
        service.logits(selection),
        reference_logits(service.plan(selection).tokens, service.model),
        "the reference",
    )


def repaired_is_reference(service: SchemaServer, selection: Selection) -> None:
    """With repair, linked KV gives the logits of the reference; with `all`, those of plain causal prefill."""
    for repair in _REPAIRS:
        plan = service.plan(selection, Repair.parse(repair))
        logits = linked_logits(plan, service.executor)
        _near(service, logits, reference_logits(plan.tokens, service.model), f"the reference with repair {repair!r}")
        if repair == "all":
            _near(service, logits, plain_logits(plan.tokens, service.model), "ordinary prefill with repair 'all'")


def attended_is_reference(service: SchemaServer, selection: Selection) -> None:
    """The tokens that new ones attend to most are those of transformers' own attention, and logits are the reference."""
    plan = service.plan(selection, Repair.parse("attended-2"))
    prepared = prepare(plan, service.executor).plan
    expected = attended(plan, service.model)
    if prepared != expected:
        raise BrokenLaw(f"computed again: {prepared.repaired}, expected {expected.repaired}")
    logits = linked_logits(plan, service.executor)
    _near(service, logits, reference_logits(expected.tokens, service.model), "the reference with attended tokens")


def exact_is_plain(service: SchemaServer, selection: Selection) -> None:
    """An answer of level `exact` equals one causal forward pass over the same tokens at the same positions."""
    plan = service.plan(selection)
    if plan.level is Level.EXACT:
        _near(service, service.logits(selection), plain_logits(plan.tokens, service.model), "ordinary prefill")


def exact_is_models_own(service: SchemaServer, selection: Selection) -> None:
    """An exact request whose positions have no gaps equals the model's own ordinary forward pass."""
    plan = service.plan(selection)
    tokens = used_tokens(plan.tokens)
    if plan.level is not Level.EXACT or [token.position for token in tokens] != list(range(len(tokens))):
        return
    with torch.no_grad():
        token_ids = torch.tensor([[token.token_id for token in tokens]], device=service.model.device)
        own: torch.Tensor = service.model.hf(token_ids).logits[0]
    cached = service.logits(selection)
    _near(service, cached, own[-len(cached) :], "the model's own forward")


def unselected_text_changes_nothing(service: SchemaServer, selection: Selection) -> None:
    """The text of modules that a prompt does not select never changes its output."""
    schema = service.served.schema
    other = replace(schema, children=_masked(schema.children, frozenset(selection.modules), service))
    after = service.renewed(other).logits(replace(selection, schema=other))
    _near(service, after, service.renewed().logits(selection), "the answer beside other text")


def models_do_not_mix(first: SchemaServer, second: SchemaServer, selection: Selection) -> None:
    """Two models that share a store answer as each does alone."""
    sharing = second.on(first.store)
    first.logits(selection)
    _near(sharing, sharing.logits(selection), second.renewed().logits(selection), "the answer of a model alone")


def generation_is_reference(service: SchemaServer, selection: Selection) -> None:
    """Every generated token is the likeliest one by the reference, over the prompt and the tokens before it."""
    plan = service.plan(selection)
    tokens = service.tokens(selection, _NUM_GENERATED)
    expected = reference_logits(plan.continued(tokens[:-1]).tokens, service.model)[plan.num_new_tokens - 1 :]
    chosen = expected.gather(1, torch.tensor(tokens, device=expected.device)[:, None])[:, 0]
    behind = float(((expected.max(dim=1).values - chosen) / expected.abs().max()).max())
    if behind > service.tolerance:
        raise BrokenLaw(f"generated {tokens}, {behind:.2g} behind the likeliest tokens of the reference")


ENGINE_LAWS = (
    Law(name="cached is the reference", over=Over.ANSWER, check=cached_is_reference),
    Law(name="repaired is the reference", over=Over.ANSWER, check=repaired_is_reference),
    Law(name="attended is the reference", over=Over.ANSWER, check=attended_is_reference),
    Law(name="exact is ordinary prefill", over=Over.ANSWER, check=exact_is_plain),
    Law(name="exact is the model's own", over=Over.ANSWER, check=exact_is_models_own),
    Law(name="unselected text changes nothing", over=Over.ANSWER, check=unselected_text_changes_nothing),
    Law(name="generation is the reference", over=Over.ANSWER, check=generation_is_reference),
)
"""The laws of one prompt; `histories` are about several."""


def _near(service: SchemaServer, actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    far = distance(actual, expected) if actual.shape == expected.shape else float("inf")
    if not far < service.tolerance:
        raise BrokenLaw(f"logits lie {far:.2g} from {what}, {service.tolerance:.2g} is rounding")


def _masked(
    items: tuple[CheckedItem, ...], kept: frozenset[str], service: SchemaServer, own: bool = True
) -> tuple[CheckedItem, ...]:
    """Replace the text of every module outside `kept` by other text of as many tokens."""
    masked: list[CheckedItem] = []
    for item in items:
        if isinstance(item, FinalText) and not own:
            masked.append(replace(item, text=_other_text(item.text, service)))
        elif isinstance(item, CheckedTurn):
            masked.append(replace(item, children=_masked(item.children, kept, service, own)))
        elif isinstance(item, CheckedModule):
            masked.append(replace(item, children=_masked(item.children, kept, service, item.path in kept)))
        elif isinstance(item, CheckedUnion):
            members = _masked(item.members, kept, service, own)
            masked.append(replace(item, members=tuple(each for each in members if isinstance(each, CheckedModule))))
        else:
            masked.append(item)
    return tuple(masked)


def _other_text(text: str, service: SchemaServer) -> str:
    """Return another text of as many tokens."""
    num_tokens = len(service.tokenizer.tokenize(text))
    for word in ("~", " ~", "-", " no", "\n"):
        other = word * num_tokens
        if len(service.tokenizer.tokenize(other)) == num_tokens and other != text:
            return other
    return text
