"""The version. The build puts the number of include/sparkguard_abi.h here; this file stands for the source tree."""

__version__ = "0+source"
