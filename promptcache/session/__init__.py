"""What lives longer than a request: chats, warming, and the figures of an engine."""

from promptcache.session.chat import Chat, chat_prompt
from promptcache.session.chat_file import read_chat
from promptcache.session.stats import EngineStats
from promptcache.session.warm import WarmReport, warm
