"""What the tokens of an answer mean, and which may come next: text, calls of tools, reasoning, formats."""

from promptcache.answers.answer_reader import AnswerReader, AnswerSplit, answer_reader
from promptcache.answers.call_style import call_style
from promptcache.answers.logprobs import TokenLogprobs, token_logprobs
from promptcache.answers.reasoning import SplitText, has_channels
from promptcache.answers.text import IncrementalText, whole_text
from promptcache.answers.token_grammars import Mask, TokenGrammars, TokenMatcher, masked, token_grammars
