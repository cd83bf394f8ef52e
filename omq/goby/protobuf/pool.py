"""The pools of this package's definitions: next to Goby's own in the default pool, and apart from them."""

from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool

POOL: Final = DescriptorPool()
