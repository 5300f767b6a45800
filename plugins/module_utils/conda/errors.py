# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What conda and pip mean when they fail: a stable code and a suggestion for what they print. Pure functions.

The class names are conda's own (conda/exceptions.py, conda-anaconda-tos, conda-libmamba-solver); texts around them differ
between versions, so names are matched. Where something was to be fetched, the proxy of the environment is
told. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.lib import proxies

# (pattern, code, message, hint), the first that matches counts. %s in message: the environment.
CONDA = (
    (
        r"CondaToS(NonInteractive|Rejected)Error|Terms of Service have not been accepted",
        "conda.terms",
        "a channel of %s asks for its terms of service to be accepted",
        "miniconda_accept_tos: true accepts them; otherwise use conda-forge (miniconda_channels)",
    ),
    (
        r"nothing provides __cuda|__cuda[^\n]*missing on the system",
        "conda.no_cuda",
        "conda sees no driver for %s",
        "install the driver first; to prepare a host before its driver runs, name a CUDA version",
    ),
    (
        r"PackagesNotFoundError|ResolvePackageNotFound|PackagesNotFoundInChannelsError",
        "conda.not_found",
        "the channels do not have what %s asks for",
        "conda search with the same channels shows versions and builds",
    ),
    (
        r"LibMambaUnsatisfiableError|UnsatisfiableError|UnsatisfiableConstraintsError|Could not solve for environment specs",
        "conda.unsatisfiable",
        "what %s requests cannot be installed together",
        "its last lines name the packages; provision compat shows what fits",
    ),
    (
        r"ProxyError|407 Proxy",
        "conda.proxy",
        "the proxy rejected conda's requests for %s",
        "gpu_proxy_http and gpu_proxy_https must be right; proxy_servers in a .condarc of the host may override them",
    ),
    (
        r"CondaSSLError|SSLError|CERTIFICATE_VERIFY_FAILED",
        "conda.tls",
        "the certificate of a channel of %s is not trusted",
        "install its authority on the host, and name it with ssl_verify in .condarc",
    ),
    (
        r"UnavailableInvalidChannel",
        "conda.no_channel",
        "a channel of %s does not exist",
        "check miniconda_channels and miniconda_channel_alias",
    ),
    (
        r"ChecksumMismatchError|SafetyError|CondaVerificationError|InvalidArchiveError",
        "conda.bad_package",
        "a package of %s arrived damaged",
        "run again; a mirror that is being synchronised is consistent again later",
    ),
    (
        r"CondaHTTPError|HTTP 000 CONNECTION FAILED|ConnectionFailed|CondaConnectionError|Connection refused",
        "conda.unreachable",
        "a channel of %s cannot be reached",
        "a host without internet needs a proxy (gpu_proxy_https), or a mirror: miniconda_channel_alias",
    ),
    (
        r"NotWritableError|CondaToSPermissionError|PermissionError|Permission denied",
        "conda.not_writable",
        "conda may not write what %s needs",
        "the owner of the prefix must own all below it: chown -R, then run again",
    ),
    (
        r"CorruptedEnvironmentError",
        "conda.corrupt",
        "conda finds a damaged record while making %s",
        "the line names a file in conda-meta: move it away",
    ),
    (
        r"CondaEnvException: Pip failed|Pip subprocess error",
        "conda.pip_failed",
        "pip failed inside conda for %s",
        "its last lines say why",
    ),
)
PIP = (
    (
        r"ProxyError|407 Proxy|Cannot connect to proxy",
        "conda.proxy",
        "the proxy rejected pip's requests for %s",
        "gpu_proxy_http and gpu_proxy_https must be right; a proxy in pip's configuration on the host may override them",
    ),
    (
        r"SSLError|CERTIFICATE_VERIFY_FAILED",
        "conda.tls",
        "the certificate of the index of %s is not trusted",
        "install its authority on the host (update-ca-certificates), or name it in pip's configuration",
    ),
    (
        r"is not a trusted or secure host",
        "conda.insecure",
        "pip does not use the index of %s, since it is not https",
        "give the mirror https; an index that pip's configuration on the host names needs trusted-host there",
    ),
    # Before 'no matching distribution', which is how pip ends when it could not ask.
    (
        r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|Connection refused|Max retries exceeded",
        "conda.unreachable",
        "the index of %s cannot be reached",
        "a host without internet needs a proxy (gpu_proxy_https), or a mirror: miniconda_wheel_index_url, miniconda_pip_index_url",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "conda.no_wheel",
        "the index has no wheel that %s asks for",
        "does the index carry that version for this Python and this CUDA? provision compat names pairs that exist",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "conda.pip_conflict",
        "the wheels that %s requests cannot be installed together",
        "pip's last lines name them; loosen one",
    ),
    (r"HASH|do not match these hashes", "conda.bad_package", "a wheel of %s arrived damaged", "run again"),
    (
        r"Permission denied",
        "conda.not_writable",
        "pip may not write what %s needs",
        "the owner of the prefix must own all below it: chown -R, then run again",
    ),
    (
        r"Failed building wheel|failed-wheel-build|metadata-generation-failed|subprocess-exited-with-error",
        "conda.pip_build",
        "a package of %s has no wheel and could not be built",
        "take a version with a wheel for this Python, or install a compiler first",
    ),
)
_FETCHING = ("conda.proxy", "conda.tls", "conda.unreachable", "conda.no_channel")
_NOISE = re.compile(r"^\s*(WARNING: Location|Looking in |Using cached|Downloading|Collecting |Requirement already)")


def explain(result, who, name, path, sources=()):
    """Return the CondaError for a failed run of conda or pip.

    result: condacommon.Result; who: ``conda`` or ``pip``; name: of the environment; path: where it was being made;
    sources: channels or indexes, which pip's own message leaves out.
    """
    lines = conda_common.last_lines("\n".join(line for line in result.text.split("\n") if not _NOISE.match(line)), 12)
    sources = ["from: " + ", ".join(sources)] if sources else []
    if result.timed_out:
        return CondaError(
            "conda.slow",
            "%s did not end in time while it made %s" % (who, name),
            lines,
            "run again: downloaded packages stay in the cache",
        )
    if conda_common.full_disk(result.text):
        return conda_common.disk_error(path, result.text)
    if result.signal:
        return CondaError(
            "conda.killed",
            "%s was ended by signal %d while it made %s" % (who, result.signal, name),
            lines,
            "run again to make it from the start; dmesg shows whether memory ran out",
        )
    if "CondaEnvException: Pip failed" in result.text:
        # which conda runs for the packages of a file
        who = "pip"
    for pattern, code, message, hint in PIP if who == "pip" else CONDA:
        if re.search(pattern, result.text):
            way = ["%s: %s" % (who, proxies.of_environment())] if code in _FETCHING else []
            return CondaError(code, message % name, lines + sources + way, hint)
    return CondaError(
        "conda.failed",
        "%s ended with exit code %d while it made %s" % (who, result.rc, name),
        lines,
        "its last lines say why",
    )
