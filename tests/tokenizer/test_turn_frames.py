"""Laws of turn frames: headers and footers depend on the role alone and are the template's own."""

from __future__ import annotations

import pytest
from promptcache.tokenizer.turn_frames import Frame, Frames, cut_frames

from promptcache.diagnostics import UnsupportedModel
from promptcache.tokenizer.chat_template import ChatTemplate
from tests.tokenizer.chat_templates import CASES, Case

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def cut(source: str) -> Frames:
    return cut_frames(ChatTemplate(source, TOKENS), "<s>", "</s>")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_frames_are_cut_from_a_rendered_conversation(case: Case):
    """Headers and footers are what the template writes in the middle of a conversation; default system text is not."""
    frames = cut(case.source)

    assert frames.user == Frame(*case.user)
    assert frames.assistant == Frame(*case.assistant)
    assert frames.system == Frame(*(case.system or case.user))
    assert (frames.ending, frames.starts_with_bos) == (case.ending, case.starts_with_bos)
    assert len(frames.warnings) == case.num_warnings


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.system])
def test_frames_put_together_are_the_rendered_conversation(name: str):
    """A conversation made of frames reads as the template renders it, from its second turn on."""
    case = CASES[name]
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": f"text {index}"} for index, role in enumerate(roles)]
    frames = {"system": case.system or case.user, "user": case.user, "assistant": case.assistant}
    if "harmony" in name:
        frames["assistant"] = (case.assistant[0] + "<channel>final<msg>", case.assistant[1])

    rendered = ChatTemplate(case.source, TOKENS).render(messages, generation_prompt=False)

    joined = "".join(frames[m["role"]][0] + m["content"] + frames[m["role"]][1] for m in messages)
    assert rendered is not None
    assert rendered.endswith(joined[joined.index("text 0") :].removesuffix(case.user[1]) + case.user[1])


def test_dates_are_frozen():
    """A template sees the same day always."""
    source = "{% for m in messages %}{{ strftime_now('%Y-%m-%d') + m.role + m.content }}{% endfor %}"

    assert cut(source).user.header == "2024-07-26user"


def test_a_template_that_loses_text_is_refused():
    """A template in whose conversations the texts cannot be found is refused with the reason."""
    with pytest.raises(UnsupportedModel, match="renders no conversation"):
        cut("{{ messages[-1].content }}")


def test_a_broken_template_is_refused():
    """A template that is not Jinja2 is refused with the reason."""
    with pytest.raises(UnsupportedModel, match="not valid Jinja2"):
        cut("{% for %}")


def test_a_template_cannot_reach_python():
    """Templates run in a sandbox: reaching for Python's internals is a refusal, not an escape."""
    with pytest.raises(UnsupportedModel):
        cut("{{ messages.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}")


def test_json_in_templates_is_as_transformers_writes_it():
    """The tojson filter escapes neither HTML nor other alphabets."""
    template = ChatTemplate("{{ messages | tojson }}", {})

    assert template.render([{"a": "<é>"}], generation_prompt=False) == '[{"a": "<é>"}]'


def test_where_bos_and_eos_are_one_token_it_stays_in_the_footer():
    """A token that is both BOS and EOS closes turns and is not cut away as BOS."""
    template = ChatTemplate("{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}", TOKENS)

    assert cut_frames(template, "</s>", "</s>").assistant == Frame("assistant:", "</s>")


def test_lines_of_blocks_leave_no_trace():
    """Indentation and newline around a block tag are not rendered, as in transformers."""
    template = ChatTemplate("a\n    {% if true %}\nb\n    {% endif %}\nc", {})

    assert template.render([], generation_prompt=False) == "a\nb\nc"
