# statelog on a small Python: the materializer daemon of docker-compose.yml, or any other command of statelog.
#
#   docker build --tag statelog .
#   docker run --rm statelog --help
#
# With other extras than those for S3, metrics and Amazon MSK with IAM, such as those of another store or the page:
#   docker build --build-arg EXTRAS=gcs,metrics,web --tag statelog .
#
# Behind a package index or a proxy of your own, hand the settings of your environment in:
#   docker build --build-arg PIP_INDEX_URL --build-arg HTTPS_PROXY .
FROM python:3.11-slim-bookworm AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

# Only this stage asks an index. What it is told for that, perhaps a password, is not in the history of the image.
FROM base AS build
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT
ARG EXTRAS=s3,metrics,msk
WORKDIR /source
# What statelog rests on is a layer of its own, which a change of the code leaves alone. No Spark.
COPY pyproject.toml .
RUN python3 -c "import os, tomllib; t = tomllib.load(open('pyproject.toml', 'rb')); p = t['project']; \
      print(*t['build-system']['requires'], sep='\n', file=open('/tmp/tools', 'w')); \
      more = [one for extra in os.environ['EXTRAS'].split(',') if extra for one in p['optional-dependencies'][extra]]; \
      print(*p['dependencies'], *more, sep='\n', file=open('/tmp/needs', 'w'))" \
    && python3 -m venv /opt/statelog && /opt/statelog/bin/pip install --requirement /tmp/needs \
    && python3 -m pip install --requirement /tmp/tools
COPY . .
RUN python3 -m pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheel .

FROM base
RUN useradd --create-home --uid 10001 statelog
COPY --from=build /opt/statelog /opt/statelog
ENV PATH=/opt/statelog/bin:$PATH PYTHONUNBUFFERED=1
COPY --from=build /wheel /tmp/wheel
# Fails if anything that the wheel asks for is not in place.
RUN pip install --no-index /tmp/wheel/*.whl
USER statelog
WORKDIR /home/statelog
# The daemon finishes the round in flight on SIGTERM and exits with 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["statelog"]
CMD ["--help"]
