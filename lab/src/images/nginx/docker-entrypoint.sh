#!/bin/sh
# Runs the scripts of /docker-entrypoint.d, listens on IPv6 too where there is one, and becomes the command.
set -e

if [ "$1" = nginx ]; then
    for script in /docker-entrypoint.d/*.sh; do
        [ -x "$script" ] && "$script"
    done
    conf=/etc/nginx/conf.d/default.conf
    # A configuration that is mounted or on a read-only root stays as it is.
    if [ -s /proc/net/if_inet6 ] && [ "$(grep -c 'listen' "$conf" 2>/dev/null)" = 1 ] && [ -w "$conf" ] &&
        grep -qx '    listen 80;' "$conf" && touch "$conf" 2>/dev/null; then
        sed -i 's/^    listen 80;$/    listen 80;\n    listen [::]:80;/' "$conf"
    fi
fi

exec "$@"
