#![allow(missing_docs, dead_code)]
pub struct ScorerModel {
    engine: offshoot_engine::EngineHandle,
    form: crate::ResolvedForm,
    identity: crate::ScorerIdentity,
}
impl ScorerModel {
    pub fn new(
        engine: offshoot_engine::EngineHandle,
        form: crate::ResolvedForm,
        identity: crate::ScorerIdentity,
    ) -> offshoot_core::error::Result<Self> {
        Ok(Self { engine, form, identity })
    }
    pub fn engine(&self) -> &offshoot_engine::EngineHandle {
        &self.engine
    }
}
impl crate::TextScorer for ScorerModel {
    fn begin(&self, _: &[offshoot_text::Message]) -> offshoot_core::error::Result<Box<dyn crate::ScoredTree>> {
        todo!()
    }
    fn scale(&self) -> crate::Scale {
        self.form.scale()
    }
    fn aggregate(&self) -> crate::Aggregate {
        self.form.aggregate()
    }
    fn identity(&self) -> &crate::ScorerIdentity {
        &self.identity
    }
}
