#!/bin/sh
# Install Debian's chromium and chromium-driver for tests/report, unless both are present.
set -eu

# Install both from the same source, because the driver must match the browser.
if command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_browser: apt-get not found; install Chromium and a matching chromedriver manually" >&2
    exit 1
fi
root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        root="sudo -n"
    else
        echo "install_browser: not root; run: sudo apt-get install chromium chromium-driver" >&2
        exit 1
    fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $root apt-get update -qq &&
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        chromium chromium-driver fonts-dejavu-core; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "install_browser: apt-get failed; see the log above" >&2
    exit 1
fi
