//! Fuzz targets for every parser, and the smoke run over them.
