"""The schemas that an engine serves, and the plans of prompts against them. No model work."""

from promptcache.planning.catalog import Catalog
from promptcache.planning.planner import (
    Planner,
    PromptSource,
    TemplateOptions,
    check_room,
    checked_batch,
)
from promptcache.planning.served_schema import ServedSchema, choose_placement, serve_schema
from promptcache.planning.turns import ChatPrompt, ChatTurn, chat_message, turn_messages
