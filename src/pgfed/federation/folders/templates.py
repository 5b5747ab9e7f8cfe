"""The files that `federation init` writes for people and for systemd."""

from __future__ import annotations

FEDERATION_HEAD = """\
# A federation. Server and sites must hold the same values: change one, and hand out site.toml anew.
# The server's alone: `max_samples`, how many samples a site may say it has, as a number for all, or
# by name as {"site-00" = 5000}. The plain mean weighs a site by what it says.

"""

EXPERIMENT_HEAD = """\
# What is trained. Server and sites must hold the same experiment: a site that holds another one
# does not take part. `local` costs no exchange: each site trains it alongside the first of the
# other methods.

"""

SITE_HEAD = """\
# One site of a federation. Fill in `data` with this site's own samples: npz:PATH, folder:PATH,
# csv:PATH or parquet:PATH; they never leave this machine. `share_model`: may the server keep a copy
# of this site's model?
# `allow_modules`: Python modules that experiment.toml may import here, beside pgfed's own methods
# and models; they must be installed here, and are programs: look at them first.
# `auto_approve`: take part in whatever experiment.toml here says, without
# `pgfed federation approve`.
# More limits may be added: `max_rounds` of an experiment, and `max_runs` of it; `min_batch`, the
# fewest samples that a step of training is computed from; `max_step`, the longest step from the
# model that was sent, and the longest gradient, that may leave; `answers_per_round`, how many
# different questions of a kind are answered in one round (5); `requests`, the kinds that are
# answered at all (train, refresh, score, share, personal).
# The rest must be as at the server. site.key is this site's identity: show it to nobody.

"""

START = """\
#!/bin/sh
# Start this site and keep it running. Exit code 2 is a mistake in site.toml or in the data; data
# that is not there yet is waited for.
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
ExecStart=/srv/pgfed/venv/bin/pgfed federation {command}
Restart=always
RestartSec=10
# A mistake in a file does not mend itself.
RestartPreventExitStatus=2
UMask=0077
{limits}
NoNewPrivileges=true
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictSUIDSGID=true
LockPersonality=true
SystemCallArchitectures=native
PrivateTmp=true
PrivateDevices={no_devices}
ProtectSystem=strict
ProtectHome=read-only
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
ReadWritePaths=/srv/pgfed/{folder}

[Install]
WantedBy=multi-user.target
"""


# The server holds all messages of a round: three to four times the model for each site, and
# 0.3 GB for itself. Connections are bounded by the gate; each is a file.
_SERVER_LIMITS = """\
LimitNOFILE=65536
# Room for the messages of a round; adapt it to the model and the number of sites.
MemoryMax=4G
TasksMax=256"""

_SITE_LIMITS = """\
LimitNOFILE=4096
# Uncomment and adapt: 0.3 GB, the data, and what training takes.
# MemoryMax=8G
TasksMax=512"""


def server_unit(federation: str) -> str:
    return _UNIT.format(
        file="pgfed-server",
        description=f"Server of the federation {federation}",
        folder=federation,
        command=f"server /srv/pgfed/{federation} --resume",
        limits=_SERVER_LIMITS,
        no_devices="true",
    )


def site_unit(federation: str, name: str) -> str:
    return _UNIT.format(
        file="pgfed-site",
        description=f"{name} of the federation {federation}",
        folder=name,
        command=f"site /srv/pgfed/{name}",
        limits=_SITE_LIMITS,
        no_devices="false",  # a GPU is one
    )
