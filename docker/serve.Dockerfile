# anchored serve. From the repository's root: docker build -f docker/serve.Dockerfile -t anchored-serve .
# For an NVIDIA GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --create-home --uid 1000 anchored \
    && install --directory --owner anchored /ledgers

RUN pip install --no-cache-dir "torch>=2.11" --index-url "${TORCH_INDEX}"

COPY . /src
RUN pip install --no-cache-dir "/src[serve,peft]"

USER 1000
WORKDIR /home/anchored
VOLUME /ledgers
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=300s --interval=15s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
# Other machines come in by a key only: --api-key-file, as in compose.yaml.
ENTRYPOINT ["anchored", "serve", "--ledgers", "/ledgers"]
