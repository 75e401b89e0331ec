"""Launchers and workers that are forked from a process which has torch loaded.

A run of two ranks spends most of its processor time on imports: some 2.5 s in each worker, before
the script's first line. Suites that start thousands of runs are waited for because of that alone.
With `Template.start` in the place of `subprocess.Popen` a launcher is a fork of the template, and
its workers are forks of it, too. All else is as ever: the launcher's code, signals, sockets, pids,
exit codes, and the worker becomes one as a warm spare does (recoverrun/worker/boot/spare.py), which
a script cannot tell from one that was started cold.

What it cannot show is how processes are started, so some of each suite are started as by a user.
"""
