#!/bin/sh
# Debian's Chromium and its driver, in which `make test-all` looks at the pages of plans.
set -eu
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium chromium-driver
fi
