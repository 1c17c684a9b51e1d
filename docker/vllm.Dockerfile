# anchored serve --engine vllm. From the repository's root: docker build -f docker/vllm.Dockerfile -t anchored-vllm .
FROM vllm/vllm-openai:v0.32.0

RUN useradd --create-home --uid 1000 anchored \
    && install --directory --owner anchored /ledgers

# The image has torch, transformers and vLLM: nothing of them is replaced.
RUN pip install --no-cache-dir "accelerate>=1.10" "tyro>=1.0.16" "starlette>=1.0,<2" "uvicorn>=0.40" "prometheus-client>=0.21" "sqlalchemy>=2.0.40"
COPY . /src
RUN pip install --no-cache-dir --no-deps /src

USER 1000
WORKDIR /home/anchored
VOLUME /ledgers
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=900s --interval=15s --timeout=5s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
# Other machines come in by a key only: --api-key-file, as in compose.yaml, or --accounts.
ENTRYPOINT ["anchored", "serve", "--engine", "vllm", "--ledgers", "/ledgers"]
