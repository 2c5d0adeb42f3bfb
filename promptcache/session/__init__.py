"""What lives longer than a request: chats, and warming."""

from promptcache.session.chat import Chat, chat_prompt
from promptcache.session.chat_file import read_chat
from promptcache.session.warm import WarmReport, warm
