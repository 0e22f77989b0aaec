# optdyn on CPUs: docker build -t optdyn . && docker run --rm -v "$PWD/workdirs:/runs/workdirs" optdyn \
#     train --config=quickstart --workdir=workdirs/first
# Not built yet: it was written where no docker daemon runs. For GPUs, `--build-arg EXTRAS=[cuda]`.
FROM python:3.12-slim
ARG EXTRAS=""
WORKDIR /src
COPY requirements.lock ./
RUN pip install --no-cache-dir -r requirements.lock
COPY . .
RUN pip install --no-cache-dir ".${EXTRAS}"
WORKDIR /runs
ENTRYPOINT ["optdyn"]
