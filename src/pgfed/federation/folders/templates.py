"""The files that `federation init` writes for people and for systemd."""

from __future__ import annotations

FEDERATION_HEAD = """\
# A federation. Server and sites must hold the same values: change one, and hand out site.toml anew.

"""

EXPERIMENT_HEAD = """\
# What is trained. Server and sites must hold the same experiment: a site that holds another one
# does not take part. `local` costs no exchange: each site trains it alongside the first of the
# other methods.

"""

SITE_HEAD = """\
# One site of a federation. Fill in `data`: npz:PATH or folder:PATH with this site's own samples;
# they never leave this machine. `share_model`: may the server keep a copy of this site's model?
# `allow_modules`: Python modules that experiment.toml may import here, beside pgfed's own methods
# and models; they must be installed here, and are programs: look at them first.
# The rest must be as at the server. site.key is this site's identity: show it to nobody.

"""

START = """\
#!/bin/sh
# Start this site and keep it running. Exit code 2 is a mistake in site.toml or in the data.
cd "$(dirname "$0")" || exit 2
until pgfed federation site . "$@"; do
    [ $? -eq 2 ] && exit 2
    echo "stopped; starting again in 10 seconds"
    sleep 10
done
"""

_UNIT = """\
# Copy to /etc/systemd/system, adapt the three paths and the user, then:
#   systemctl daemon-reload && systemctl enable --now {file}
[Unit]
Description={description}
After=network-online.target
Wants=network-online.target

[Service]
User=pgfed
WorkingDirectory=/srv/pgfed/{folder}
ExecStart=/srv/pgfed/venv/bin/pgfed federation {command} /srv/pgfed/{folder}
Restart=always
RestartSec=10
# A mistake in a file does not mend itself.
RestartPreventExitStatus=2
NoNewPrivileges=true
ProtectSystem=strict
ReadWritePaths=/srv/pgfed/{folder}
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


def server_unit(federation: str) -> str:
    return _UNIT.format(
        file="pgfed-server",
        description=f"Server of the federation {federation}",
        folder=federation,
        command="server",
    )


def site_unit(federation: str, name: str) -> str:
    return _UNIT.format(
        file="pgfed-site",
        description=f"{name} of the federation {federation}",
        folder=name,
        command="site",
    )
