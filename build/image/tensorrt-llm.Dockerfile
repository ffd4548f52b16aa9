# Gapless beside TensorRT-LLM, in NVIDIA's image, which holds Triton, TensorRT-LLM, torch and transformers in versions that fit each other:
# only what it lacks, or has too old (llguidance), is added, pinned as in requirements.lock. Not built by the project's tests: they reach no such image.
FROM nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3
LABEL org.opencontainers.image.title=Gapless
WORKDIR /gapless
COPY requirements.lock .
RUN grep -E '^(msgspec|pyzmq|setproctitle|sortedcontainers|python-rapidjson|psutil|Jinja2|llguidance)==' requirements.lock >missing.lock \
 && python3 -m pip install --no-cache-dir --no-deps -r missing.lock \
 && groupadd --gid 10001 gapless && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home gapless \
 && install -d -o gapless -g gapless /data
COPY build/image/is-ready build/image/is-ready
COPY models/bundled models/bundled
COPY gapless.toml .
COPY client client
COPY commands commands
COPY model_repository model_repository
COPY python_backends python_backends
RUN python3 -m compileall -q commands python_backends client
USER gapless
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENV GAPLESS_SERVER__ADDRESS=0.0.0.0 GAPLESS_FRONT__PORT=0 GAPLESS_PREDICTION__DIRECTORY=/data GAPLESS_FINETUNING__DIRECTORY=/data/finetuning
EXPOSE 8000 8001 8002
# what `gapless --version` says of this image: --build-arg COMMIT="$(git rev-parse --short HEAD)"
ARG COMMIT=
LABEL org.opencontainers.image.revision=$COMMIT
ENV GAPLESS_COMMIT=$COMMIT
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=600s --retries=3 CMD ["build/image/is-ready"]
ENTRYPOINT ["python3", "-m", "commands.serve"]
