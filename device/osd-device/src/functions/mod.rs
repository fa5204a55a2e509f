//! EXECUTE FUNCTION: functions that run beside the data.

mod seam;

pub use seam::{
    EngineInfo, FunctionCall, FunctionCaller, FunctionRefusal, FunctionRunner, GrantError, GrantedList,
    GrantedObject, JobCall,
};
