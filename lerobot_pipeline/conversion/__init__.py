"""Conversion of weights between DCP shards and one safetensors file, tensor by tensor, without torch and ranks."""
