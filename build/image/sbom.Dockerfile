# The Python packages of an image of ours, with versions and licenses, as CycloneDX. Neither image nor environment gets anything more:
#   docker build -f build/image/sbom.Dockerfile --build-arg IMAGE=gapless -t gapless-sbom . && docker run --rm gapless-sbom > sbom.json
ARG IMAGE=gapless
FROM debian:bookworm-slim AS tool
LABEL org.opencontainers.image.title=Gapless
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libpython3.11 python3.11 python3.11-venv \
 && rm -rf /var/lib/apt/lists/*
COPY requirements-sbom.lock .
RUN python3.11 -m venv /tool && /tool/bin/python -m pip install --no-cache-dir --no-deps -r requirements-sbom.lock

FROM $IMAGE
USER root
COPY --from=tool /tool /tool
RUN /tool/bin/cyclonedx-py environment --output-reproducible -o /sbom.json /gapless/.venv/bin/python
USER gapless
HEALTHCHECK NONE
ENTRYPOINT ["cat", "/sbom.json"]
