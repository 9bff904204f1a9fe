"""From a laptop to a cluster or a cloud: a sweep becomes jobs, each of them exactly `attnlab sweep --shard I/N --resume`.

`attnlab.cli` loads this package by name, from the checkout. The engines are existing ones: submitit starts processes
on this machine and arrays on SLURM, SkyPilot reads the files in `sky/`.
"""
