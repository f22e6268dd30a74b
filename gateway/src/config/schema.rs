//! The JSON schema of the file, for editors that complete and check while the operator writes.

use schemars::generate::SchemaSettings;

use super::written::Root;

/// The JSON schema (draft 2020-12) of a configuration file, derived from the tables that are read.
pub fn schema() -> serde_json::Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Root>();
    schema.insert("title".to_owned(), "weir.toml".into());
    schema.to_value()
}
