# statelog on a small Python: the materializer daemon of docker-compose.yml, or any other command of statelog.
#
# Behind a package index or a proxy of your own, hand the settings of your environment in:
#   docker build --build-arg PIP_INDEX_URL --build-arg HTTPS_PROXY .
FROM python:3.11-slim-bookworm AS build
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/statelog && /opt/statelog/bin/pip install '.[s3]'

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 10001 statelog
COPY --from=build /opt/statelog /opt/statelog
ENV PATH=/opt/statelog/bin:$PATH PYTHONUNBUFFERED=1
USER statelog
WORKDIR /home/statelog
# Python is the first process here, and the daemon ends cleanly on SIGTERM.
STOPSIGNAL SIGTERM
ENTRYPOINT ["statelog"]
CMD ["--help"]
