"""An OpenAI-compatible HTTP server over one engine.

`create_app` makes the ASGI application, and `serve` runs it until SIGTERM. The extra `server` has its dependencies.
"""

from promptcache.server.app import create_app
from promptcache.server.gate import ApiKeys, read_keys
from promptcache.server.log import log_event, start_log
from promptcache.server.run import raise_file_limit, serve
from promptcache.server.schema_folder import SchemaFolder
from promptcache.server.state import ServerState
from promptcache.settings import ServerSettings
