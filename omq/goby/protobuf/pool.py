"""The descriptor pool of this package's definitions, apart from the default pool, which may have Goby's own."""

from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool

POOL: Final = DescriptorPool()
