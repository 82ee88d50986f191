# syntax=docker/dockerfile:1

ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
ARG EXTRAS=kafka,otel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/shardwheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY server server
COPY shard_manager shard_manager
COPY worker_sdk worker_sdk
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/shardwheel/bin/python install --quiet --compile ".[${EXTRAS}]"

FROM ${PYTHON}
LABEL org.opencontainers.image.title="shardwheel" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/shardwheel /opt/shardwheel
# All that is installed is compiled already, and the root file system may be read-only: only /tmp and the data directory
# are written to. The authorities are those that sslrootcert=system means.
ENV PATH="/opt/shardwheel/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# A number, so that Kubernetes can tell that it is not root.
USER 10001:10001
EXPOSE 7400 7480
ENTRYPOINT ["shardwheel"]
CMD ["serve"]
