"""The contract as documents: JSON Schemas, AsyncAPI."""
