//! Rows as JSON objects: values of columns within others are put together again.
//!
//! Truth: the levels of the Dremel paper as the Parquet format uses them.

use std::ops::Range;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::{SchemaDescriptor, Type};

use super::leaf::SelectedLeaf;
use super::values::{LeafKind, json_text};

/// How the value of a node is written, if there is one.
#[derive(Debug)]
enum NodeForm {
    /// A value of the column with this number among the selected ones.
    Leaf { max_def: i16, kind: LeafKind },
    /// An object with a key for each child.
    Object(Vec<JsonNode>),
    /// The only child: the form of an element of a list.
    Child(Box<JsonNode>),
}

/// A node of the schema.
#[derive(Debug)]
struct JsonNode {
    name: String,
    repetition: Repetition,
    /// Levels of a value of the node.
    def: i16,
    rep: i16,
    leaves: Range<usize>,
    form: NodeForm,
}

/// The columns of rows in JSON.
#[derive(Debug)]
pub(super) struct JsonSchema(Vec<JsonNode>);

/// Position in the levels and values of a row.
struct LeafCursor<'l> {
    leaf: &'l SelectedLeaf,
    level: usize,
    level_end: usize,
    value: usize,
}

/// Columns within one whose levels do not belong together.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelError;

impl LeafCursor<'_> {
    /// Returns the levels at the position; `None` at the end of the row.
    fn levels(&self) -> Option<(i16, i16)> {
        let batch = &self.leaf.batch;
        (self.level < self.level_end).then(|| (batch.def[self.level], batch.rep[self.level]))
    }

    /// Moves behind a level; returns the position of its value.
    fn advance(&mut self, max_def: i16) -> Result<usize, LevelError> {
        let (def, _) = self.levels().ok_or(LevelError)?;
        let value = self.value;
        self.level += 1;
        self.value += usize::from(def == max_def);
        Ok(value)
    }
}

fn is_list(node: &Type) -> bool {
    let info = node.get_basic_info();
    matches!(info.logical_type_ref(), Some(LogicalType::List)) || info.converted_type() == ConvertedType::LIST
}

fn is_map(node: &Type) -> bool {
    let info = node.get_basic_info();
    matches!(info.logical_type_ref(), Some(LogicalType::Map))
        || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
}

/// Whether a repeated group within a list is only the place of its element.
fn is_element_group(list: &str, node: &Type) -> bool {
    let is_old_form = node.name() == "array" || node.name() == format!("{list}_tuple");
    node.is_group() && node.get_fields().len() == 1 && !is_old_form
}

/// Builds nodes from the schema; leaves that are not selected are left out.
struct NodeBuilder<'s> {
    schema: &'s SchemaDescriptor,
    selected: &'s [usize],
    /// Number of the next leaf in the schema, and among the selected ones.
    leaf: usize,
    position: usize,
}

impl NodeBuilder<'_> {
    fn node(&mut self, node: &Type, (def, rep): (i16, i16), list: Option<&str>) -> Option<JsonNode> {
        let info = node.get_basic_info();
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        let def = def + i16::from(repetition != Repetition::REQUIRED);
        let rep = rep + i16::from(repetition == Repetition::REPEATED);
        let start = self.position;
        let form = if node.is_primitive() {
            let column = self.schema.column(self.leaf);
            self.leaf += 1;
            if self.selected.get(self.position) != Some(&(self.leaf - 1)) {
                return None;
            }
            self.position += 1;
            NodeForm::Leaf { max_def: column.max_def_level(), kind: LeafKind::of(&column) }
        } else {
            let own_list = is_list(node).then(|| node.name());
            let children = node.get_fields().iter();
            let mut children: Vec<JsonNode> =
                children.filter_map(|child| self.node(child, (def, rep), own_list)).collect();
            let is_element = list.is_some_and(|list| is_element_group(list, node));
            let is_single_list = (own_list.is_some() || is_map(node))
                && matches!(&children[..], [child] if child.repetition == Repetition::REPEATED);
            match children.pop() {
                None => return None,
                Some(child) if children.is_empty() && (is_element || is_single_list) => {
                    NodeForm::Child(Box::new(child))
                }
                Some(child) => {
                    children.push(child);
                    NodeForm::Object(children)
                }
            }
        };
        Some(JsonNode {
            name: node.name().to_owned(),
            repetition,
            def,
            rep,
            leaves: start..self.position,
            form,
        })
    }
}

impl JsonSchema {
    /// Returns the columns of these leaves, which are whole top-level columns.
    pub(super) fn new(schema: &SchemaDescriptor, selected: &[usize]) -> Self {
        let mut builder = NodeBuilder { schema, selected, leaf: 0, position: 0 };
        let fields = schema.root_schema().get_fields();
        Self(fields.iter().filter_map(|field| builder.node(field, (0, 0), None)).collect())
    }

    /// Appends a row as a JSON object.
    pub(super) fn push_row(
        &self,
        leaves: &[SelectedLeaf],
        row: usize,
        out: &mut String,
    ) -> Result<(), LevelError> {
        let cursor = |leaf| -> Option<LeafCursor<'_>> {
            let leaf: &SelectedLeaf = leaf;
            let (level_end, _) = *leaf.row_ends.get(row)?;
            let (level, value) =
                row.checked_sub(1).and_then(|row| leaf.row_ends.get(row)).copied().unwrap_or((0, 0));
            Some(LeafCursor { leaf, level, level_end, value })
        };
        let cursors: Option<Vec<LeafCursor<'_>>> = leaves.iter().map(cursor).collect();
        let mut cursors = cursors.ok_or(LevelError)?;
        push_object(&self.0, &mut cursors, out)?;
        let is_complete = cursors.iter().all(|cursor| cursor.levels().is_none());
        if is_complete { Ok(()) } else { Err(LevelError) }
    }
}

fn push_object(
    nodes: &[JsonNode],
    cursors: &mut [LeafCursor<'_>],
    out: &mut String,
) -> Result<(), LevelError> {
    out.push('{');
    for (at, node) in nodes.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&json_text(&node.name));
        out.push(':');
        node.push(cursors, out)?;
    }
    out.push('}');
    Ok(())
}

impl JsonNode {
    fn first_levels(&self, cursors: &[LeafCursor<'_>]) -> Option<(i16, i16)> {
        cursors.get(self.leaves.start)?.levels()
    }

    /// Moves all leaves of the node behind one level.
    fn skip(&self, cursors: &mut [LeafCursor<'_>]) -> Result<(), LevelError> {
        match &self.form {
            NodeForm::Leaf { max_def, .. } => {
                let cursor = cursors.get_mut(self.leaves.start).ok_or(LevelError)?;
                cursor.advance(*max_def).map(drop)
            }
            NodeForm::Object(children) => children.iter().try_for_each(|child| child.skip(cursors)),
            NodeForm::Child(child) => child.skip(cursors),
        }
    }

    fn push(&self, cursors: &mut [LeafCursor<'_>], out: &mut String) -> Result<(), LevelError> {
        let (def, _) = self.first_levels(cursors).ok_or(LevelError)?;
        match self.repetition {
            Repetition::REQUIRED => self.push_value(cursors, out),
            Repetition::OPTIONAL if def < self.def => {
                out.push_str("null");
                self.skip(cursors)
            }
            Repetition::OPTIONAL => self.push_value(cursors, out),
            Repetition::REPEATED if def < self.def => {
                out.push_str("[]");
                self.skip(cursors)
            }
            Repetition::REPEATED => {
                out.push('[');
                loop {
                    self.push_value(cursors, out)?;
                    // An element continues the list at its own level.
                    match self.first_levels(cursors) {
                        Some((_, rep)) if rep == self.rep => out.push(','),
                        _ => break,
                    }
                }
                out.push(']');
                Ok(())
            }
        }
    }

    fn push_value(&self, cursors: &mut [LeafCursor<'_>], out: &mut String) -> Result<(), LevelError> {
        match &self.form {
            NodeForm::Object(children) => push_object(children, cursors, out),
            NodeForm::Child(child) => child.push(cursors, out),
            NodeForm::Leaf { max_def, kind } => {
                let cursor = cursors.get_mut(self.leaves.start).ok_or(LevelError)?;
                let value = cursor.advance(*max_def)?;
                kind.push_json(&cursor.leaf.batch.values, value, out);
                Ok(())
            }
        }
    }
}
