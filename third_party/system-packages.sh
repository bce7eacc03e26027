#!/usr/bin/env bash
# Installs the Debian packages that the build needs, when it may; otherwise prints the one command.
set -euo pipefail

packages=(python3-dev python3-venv libopenmpi-dev openmpi-bin libspdlog-dev nlohmann-json3-dev
  libtomlplusplus-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev cmake ninja-build ccache
  clang-format g++)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
    missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
  sudo=()
elif sudo -n true 2>/dev/null; then
  sudo=(sudo -n)
else
  echo "RaNNC needs system packages. Run this once, then try again:" >&2
  echo "  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq "${missing[@]}"
