# Yamchi in a container: `docker build -t yamchi .`, then `docker compose up -d`. docs/operations.md tells the rest.

FROM python:3.13-slim-trixie AS build
RUN python -m venv /opt/yamchi
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN /opt/yamchi/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[all]'

# The same release as above: the environment's python is a link to the one of its image.
FROM python:3.13-slim-trixie
RUN useradd --system --uid 10001 --create-home --home-dir /srv/yamchi yamchi \
    && mkdir -p /srv/yamchi/var /srv/yamchi/public/uploads \
    && chown -R yamchi:yamchi /srv/yamchi
COPY --from=build /opt/yamchi /opt/yamchi
ENV PATH=/opt/yamchi/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    YAMCHI_HOME=/srv/yamchi \
    HOST=0.0.0.0 \
    PORT=3030
WORKDIR /srv/yamchi
USER yamchi
VOLUME ["/srv/yamchi/var", "/srv/yamchi/public/uploads"]
EXPOSE 3030
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/healthz', timeout=4)"]
CMD ["yamchi", "up"]
