# The server in an image: CPU only, without root. docs/serving.md describes it. From the root of the repository:
#
#   python -m pip wheel --no-deps --wheel-dir dist .
#   python -m pip download --no-deps --dest dist --constraint constraints.txt torch --index-url INDEX
#   docker build --tag promptcache .
#
# INDEX is that of builds for the CPU, which pytorch.org names. Without the second line the image gets the usual build, which
# brings CUDA and is several times larger. To build without a network, put the wheels of all packages into dist, with the
# Python version of the image:
#
#   python -m pip download --dest dist --constraint constraints.txt "$(ls dist/promptcache-*.whl)[server]" --find-links dist
#   docker build --build-arg PIP_NO_INDEX=1 --network none --tag promptcache .
FROM python:3.12-slim AS build

ARG PIP_NO_INDEX=0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_FIND_LINKS=/wheels
COPY constraints.txt dist/*.whl /wheels/
RUN python -m venv /opt/promptcache
RUN /opt/promptcache/bin/python -m pip install --constraint /wheels/constraints.txt "$(ls /wheels/promptcache-*.whl)[server]"

FROM python:3.12-slim

COPY --from=build /opt/promptcache /opt/promptcache
RUN useradd --uid 10001 --create-home --home-dir /var/lib/promptcache promptcache
USER promptcache
WORKDIR /var/lib/promptcache
VOLUME /var/lib/promptcache
# Without keys a public address is refused, so the container does not start without --api-key-file.
ENV PATH=/opt/promptcache/bin:$PATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 PROMPTCACHE_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["promptcache", "serve"]
